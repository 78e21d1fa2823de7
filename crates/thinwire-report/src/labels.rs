//! Where to write the lines' names: at their ends, and neither on each other nor on a line.
//!
//! Names of lines that end at the frame's right edge stand beside it, in the lines' order, spread until each can be read.
//! The others look for the place near their line's end that covers the least.

/// Between the middles of two names.
const HEIGHT: f64 = 17.0;
/// From a line's end to its name.
const GAP: f64 = 11.0;

/// A line's end, and how wide its name is.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub x: f64,
    pub y: f64,
    pub width: f64,
}

/// Where the lines are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

/// A name: its left edge, and the height of its middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub x: f64,
    pub y: f64,
}

/// Lines that end so close to the right edge have their names beside it; ends so close to each other keep their order.
const NEAR: f64 = 40.0;

/// A place for each of `ends`, in their order. `lines` are the points of everything that is drawn.
pub fn places(ends: &[End], lines: &[Vec<(f64, f64)>], frame: Frame) -> Vec<Place> {
    let mut places: Vec<Place> = ends.iter().map(|end| Place { x: end.x + GAP, y: end.y }).collect();
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by(|a, b| ends[*a].y.total_cmp(&ends[*b].y));

    let (at_edge, inside): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|at| ends[*at].x > frame.right - NEAR);
    let heights =
        spread(&at_edge.iter().map(|at| ends[*at].y).collect::<Vec<_>>(), frame.top + 6.0, frame.bottom - 8.0);
    for (at, y) in at_edge.into_iter().zip(heights) {
        places[at] = Place { x: frame.right + GAP, y };
    }

    // Each looks for its best place among the others, a few times: where one goes depends on where they went.
    // The lowest first, below which there is room.
    let ink = samples(lines);
    for _ in 0..4 {
        for at in inside.iter().rev() {
            places[*at] = best_place(*at, ends, &places, &ink, frame);
        }
    }
    places
}

/// `heights`, sorted, moved as little as it takes to be [`HEIGHT`] apart: neighbours that are too close form a group, which
/// stands evenly about the middle of its members.
fn spread(heights: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut groups: Vec<(f64, usize)> = Vec::new(); // the middle of each, and how many stand in it
    for height in heights {
        let mut group = (*height, 1);
        // A new member moves its group, which may then touch the one above it.
        loop {
            let half = group.1 as f64 * HEIGHT / 2.0;
            group.0 = group.0.min(bottom + HEIGHT / 2.0 - half).max(top - HEIGHT / 2.0 + half);
            match groups.last() {
                Some((middle, many)) if group.0 - half < middle + *many as f64 * HEIGHT / 2.0 => {
                    let all = many + group.1;
                    group = ((middle * *many as f64 + group.0 * group.1 as f64) / all as f64, all);
                    groups.pop();
                }
                _ => break,
            }
        }
        groups.push(group);
    }
    let members = |(middle, many): (f64, usize)| {
        (0..many).map(move |at| middle + (at as f64 - (many as f64 - 1.0) / 2.0) * HEIGHT)
    };
    groups.into_iter().flat_map(members).collect()
}

/// Near its line's end, on no other name, on as little of the lines as may be, and above the names of lines that end lower.
fn best_place(at: usize, ends: &[End], places: &[Place], ink: &[(f64, f64)], frame: Frame) -> Place {
    let end = ends[at];
    let sides = [(end.x + GAP, 0.0), (end.x - GAP - end.width, 6.0), (end.x - end.width / 2.0, 8.0)];
    let rows = (-4..=4).map(|row| f64::from(row) * HEIGHT);
    let tries = rows.flat_map(|row| sides.map(|(x, cost)| (Place { x, y: end.y + row }, cost + row.abs())));
    let fits = |place: &Place| place.x >= frame.left && place.y >= frame.top + 6.0 && place.y <= frame.bottom - 8.0;
    let others = || (0..ends.len()).filter(|other| *other != at);
    let cost = |(place, cost): &(Place, f64)| {
        let on_names = others().filter(|other| touch(*place, end.width, places[*other], ends[*other].width)).count();
        let swapped = others().filter(|other| {
            let near = (ends[*other].x - end.x).abs() < NEAR;
            near && (places[*other].y - place.y) * (ends[*other].y - end.y) < 0.0
        });
        let on_ink = ink.iter().filter(|point| covers(*place, end.width, **point)).count();
        cost + 1000.0 * on_names as f64 + 100.0 * swapped.count() as f64 + 9.0 * on_ink as f64
    };
    let costs = tries.filter(|(place, _)| fits(place)).map(|tried| (cost(&tried), tried.0));
    costs.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(places[at], |(_, place)| place)
}

fn touch(a: Place, a_width: f64, b: Place, b_width: f64) -> bool {
    a.x < b.x + b_width && b.x < a.x + a_width && (a.y - b.y).abs() < HEIGHT
}

fn covers(name: Place, width: f64, (x, y): (f64, f64)) -> bool {
    x > name.x - 3.0 && x < name.x + width + 3.0 && (y - name.y).abs() < HEIGHT / 2.0
}

/// Points every few units along the lines, so that long straight pieces count as well.
fn samples(lines: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    const EVERY: f64 = 5.0;
    let between = |pair: &[(f64, f64)]| {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let many = ((x1 - x0).hypot(y1 - y0) / EVERY).ceil().clamp(1.0, 500.0);
        (0..=many as usize).map(move |at| at as f64 / many).map(move |t| (x0 + t * (x1 - x0), y0 + t * (y1 - y0)))
    };
    lines.iter().flat_map(|line| line.windows(2).flat_map(between)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame = Frame { left: 50.0, top: 10.0, right: 600.0, bottom: 350.0 };

    #[test]
    fn names_at_the_edge_keep_their_order_and_their_distance() {
        let ys = [300.0, 302.0, 303.0, 349.0, 120.0];
        let places = places(&ys.map(|y| End { x: 600.0, y, width: 60.0 }), &[], FRAME);
        assert_eq!(places[4].y, 120.0, "nothing is in its way");
        for pair in places[..4].windows(2) {
            assert!(pair[1].y - pair[0].y >= HEIGHT - 1e-9, "{places:?}");
        }
        assert!(places.iter().all(|place| place.y <= FRAME.bottom));
    }

    #[test]
    fn names_inside_keep_off_lines_and_names_and_in_order() {
        let lines = [vec![(100.0, 20.0), (200.0, 250.0)], vec![(330.0, 20.0), (331.0, 340.0)]];
        let ends = [250.0, 252.0].map(|y| End { x: 200.0, y, width: 70.0 });
        let places = places(&ends, &lines, FRAME);
        assert!(!touch(places[0], 70.0, places[1], 70.0) && places[0].y < places[1].y, "{places:?}");
        let ink = samples(&lines);
        assert!(places.iter().all(|place| !ink.iter().any(|point| covers(*place, 70.0, *point))), "{places:?}");
    }
}
