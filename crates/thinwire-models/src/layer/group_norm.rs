//! Group normalisation of one image (Wu and He 2018, arXiv:1803.08494), and what follows it in a ResNet: the addition of the
//! shortcut, and relu.
//!
//! ```text
//! x̂ = (x − mean) / √(variance + ε),   mean and variance over a group of channels of the image
//! y = relu(gain·x̂ + bias + shortcut)
//! ```
//!
//! It takes the place of batch normalisation, which keeps running statistics: state that is not in the flat vector of
//! parameters and differs from worker to worker. Here an image's result depends on that image alone.
//!
//! Channels lie together, so the loops run over a block of channels, a register or two, and go down the pixels. They are
//! compiled for what the processor has (`pulp`), else they would be a quarter as wide.

use super::plane::Plane;

/// As PyTorch has it.
const EPSILON: f32 = 1e-5;

/// Into how many groups the channels go.
pub const GROUPS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    pub plane: Plane,
    /// A multiple of [`GROUPS`].
    pub channels: usize,
}

/// What follows the normalisation.
#[derive(Clone, Copy, Debug)]
pub enum Then<'a> {
    Nothing,
    Relu,
    /// The addition of the shortcut, then relu.
    AddRelu(&'a [f32]),
}

/// What the way back wants to know of the way forth.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    pub x: &'a [f32],
    pub moments: &'a [f32],
    /// What came out, where relu was the last.
    pub relu: Option<&'a [f32]>,
}

impl GroupNorm {
    /// How many values the moments are: each channel's mean, and 1/√(variance + ε).
    pub fn moments(&self) -> usize {
        2 * self.channels
    }

    /// y ← relu(gain·x̂ + bias + shortcut), or less of it; keeps the moments for `backward`. The borders are left alone.
    pub fn forward(&self, y: &mut [f32], moments: &mut [f32], x: &[f32], gain: &[f32], bias: &[f32], then: Then) {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || match self.channels % 16 {
                0 => self.forward_by::<16>(y, moments, x, gain, bias, then),
                _ => self.forward_by::<8>(y, moments, x, gain, bias, then),
            },
        );
    }

    /// dx ← the gradient of x; those of gain and bias are added. `dy` is replaced by what gets through relu, which is the
    /// gradient of the shortcut. `scratch` is as large as the moments. The borders are left alone.
    pub fn backward(
        &self,
        dx: &mut [f32],
        grad: (&mut [f32], &mut [f32]),
        dy: &mut [f32],
        passed: Passed,
        gain: &[f32],
        scratch: &mut [f32],
    ) {
        pulp::Arch::new().dispatch(
            #[inline(always)]
            || match self.channels % 16 {
                0 => self.backward_by::<16>(dx, grad, dy, passed, gain, scratch),
                _ => self.backward_by::<8>(dx, grad, dy, passed, gain, scratch),
            },
        );
    }

    #[inline(always)]
    fn forward_by<const BLOCK: usize>(
        &self,
        y: &mut [f32],
        moments: &mut [f32],
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        then: Then,
    ) {
        let (mean, inverse) = moments.split_at_mut(self.channels);
        self.find_moments::<BLOCK>(mean, inverse, x);
        for start in (0..self.channels).step_by(BLOCK) {
            let at = |values: &[f32]| *block::<BLOCK>(values, start);
            let (mean, inverse, gain, bias) = (at(mean), at(inverse), at(gain), at(bias));
            let scale: [f32; BLOCK] = std::array::from_fn(|c| gain[c] * inverse[c]);
            let shift: [f32; BLOCK] = std::array::from_fn(|c| bias[c] - mean[c] * scale[c]);
            self.each_pixel(
                start,
                #[inline(always)]
                |at| {
                    let x = block::<BLOCK>(x, at);
                    let normed: [f32; BLOCK] = std::array::from_fn(|c| x[c] * scale[c] + shift[c]);
                    let out = match then {
                        Then::Nothing => normed,
                        Then::Relu => std::array::from_fn(|c| relu(normed[c])),
                        Then::AddRelu(shortcut) => {
                            let shortcut = block::<BLOCK>(shortcut, at);
                            std::array::from_fn(|c| relu(normed[c] + shortcut[c]))
                        }
                    };
                    put(y, at, out);
                },
            );
        }
    }

    /// In two passes, as the sum of squares less the square of the sum would lose digits.
    #[inline(always)]
    fn find_moments<const BLOCK: usize>(&self, mean: &mut [f32], inverse: &mut [f32], x: &[f32]) {
        for start in (0..self.channels).step_by(BLOCK) {
            let mut sum = [0.0f32; BLOCK];
            self.each_pixel(
                start,
                #[inline(always)]
                |at| {
                    let x = block::<BLOCK>(x, at);
                    sum = std::array::from_fn(|c| sum[c] + x[c]);
                },
            );
            put(mean, start, sum);
        }
        self.over_groups(mean, |sum| sum);
        for start in (0..self.channels).step_by(BLOCK) {
            let mean = *block::<BLOCK>(mean, start);
            let mut sum = [0.0f32; BLOCK];
            self.each_pixel(
                start,
                #[inline(always)]
                |at| {
                    let x = block::<BLOCK>(x, at);
                    sum = std::array::from_fn(|c| sum[c] + (x[c] - mean[c]) * (x[c] - mean[c]));
                },
            );
            put(inverse, start, sum);
        }
        self.over_groups(inverse, |variance| 1.0 / (variance + EPSILON).sqrt());
    }

    /// With n values in a group: dx = inverse · (gain·dy − Σ(gain·dy)/n − x̂ · Σ(gain·dy·x̂)/n).
    #[inline(always)]
    fn backward_by<const BLOCK: usize>(
        &self,
        dx: &mut [f32],
        grad: (&mut [f32], &mut [f32]),
        dy: &mut [f32],
        passed: Passed,
        gain: &[f32],
        scratch: &mut [f32],
    ) {
        let x = passed.x;
        let (mean, inverse) = passed.moments.split_at(self.channels);
        let (by_dy, by_x) = scratch[..2 * self.channels].split_at_mut(self.channels);
        for start in (0..self.channels).step_by(BLOCK) {
            let (sum, sum_x) = self.sums::<BLOCK>(start, dy, passed, block(mean, start));
            let inverse = block::<BLOCK>(inverse, start);
            put(by_dy, start, sum);
            put(by_x, start, std::array::from_fn::<_, BLOCK, _>(|c| sum_x[c] * inverse[c]));
        }
        for c in 0..self.channels {
            grad.0[c] += by_x[c];
            grad.1[c] += by_dy[c];
            by_x[c] *= gain[c];
            by_dy[c] *= gain[c];
        }
        self.over_groups(by_dy, |mean| mean);
        self.over_groups(by_x, |mean| mean);
        for start in (0..self.channels).step_by(BLOCK) {
            let at = |values: &[f32]| *block::<BLOCK>(values, start);
            let (mean, inverse, gain, by_dy, by_x) = (at(mean), at(inverse), at(gain), at(by_dy), at(by_x));
            let of_dy: [f32; BLOCK] = std::array::from_fn(|c| inverse[c] * gain[c]);
            let of_x: [f32; BLOCK] = std::array::from_fn(|c| -inverse[c] * inverse[c] * by_x[c]);
            let rest: [f32; BLOCK] = std::array::from_fn(|c| -inverse[c] * by_dy[c] - mean[c] * of_x[c]);
            self.each_pixel(
                start,
                #[inline(always)]
                |at| {
                    let (x, dy) = (block::<BLOCK>(x, at), block::<BLOCK>(dy, at));
                    put(dx, at, std::array::from_fn::<_, BLOCK, _>(|c| of_dy[c] * dy[c] + (of_x[c] * x[c] + rest[c])));
                },
            );
        }
    }

    /// For a block of channels: Σ dy and Σ dy·(x − mean) over the pixels, once dy is what got through relu.
    #[inline(always)]
    fn sums<const BLOCK: usize>(
        &self,
        start: usize,
        dy: &mut [f32],
        passed: Passed,
        mean: &[f32; BLOCK],
    ) -> ([f32; BLOCK], [f32; BLOCK]) {
        let mean = *mean;
        let (mut sum, mut sum_x) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
        self.each_pixel(
            start,
            #[inline(always)]
            |at| {
                let x = block::<BLOCK>(passed.x, at);
                let mut through = *block::<BLOCK>(dy, at);
                if let Some(y) = passed.relu {
                    let y = block::<BLOCK>(y, at);
                    through = std::array::from_fn(|c| if y[c] > 0.0 { through[c] } else { 0.0 });
                    put(dy, at, through);
                }
                sum = std::array::from_fn(|c| sum[c] + through[c]);
                sum_x = std::array::from_fn(|c| sum_x[c] + through[c] * (x[c] - mean[c]));
            },
        );
        (sum, sum_x)
    }

    /// Replaces the sums of a group's channels by f of their mean over all the group's values.
    #[inline(always)]
    fn over_groups(&self, sums: &mut [f32], f: impl Fn(f32) -> f32) {
        let size = self.channels / GROUPS;
        for group in sums.chunks_exact_mut(size) {
            let mean = group.iter().sum::<f32>() / (size * self.plane.area()) as f32;
            group.fill(f(mean));
        }
    }

    /// Calls `f` with where the channels from `start` on lie, for every pixel within the border.
    #[inline(always)]
    fn each_pixel(&self, start: usize, mut f: impl FnMut(usize)) {
        for y in 0..self.plane.height {
            let row = self.plane.row(y) * self.channels + start;
            for x in 0..self.plane.width {
                f(row + x * self.channels);
            }
        }
    }
}

#[inline(always)]
fn relu(value: f32) -> f32 {
    if value > 0.0 { value } else { 0.0 }
}

#[inline(always)]
fn block<const BLOCK: usize>(values: &[f32], at: usize) -> &[f32; BLOCK] {
    values[at..].first_chunk().expect("a block of channels")
}

#[inline(always)]
fn put<const BLOCK: usize>(values: &mut [f32], at: usize, block: [f32; BLOCK]) {
    *values[at..].first_chunk_mut().expect("a block of channels") = block;
}
