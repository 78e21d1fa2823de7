//! The embedding of a token plus that of its position.

/// Row r of x becomes the embedding of token r plus that of position r mod `context`.
pub fn forward(x: &mut [f32], tokens: &[u32], token: &[f32], position: &[f32], width: usize, context: usize) {
    for (row, (x, &id)) in x.chunks_exact_mut(width).zip(tokens).enumerate() {
        let (token, position) = (line(token, id as usize, width), line(position, row % context, width));
        for ((x, token), position) in x.iter_mut().zip(token).zip(position) {
            *x = token + position;
        }
    }
}

pub fn backward(dtoken: &mut [f32], dposition: &mut [f32], dx: &[f32], tokens: &[u32], width: usize, context: usize) {
    for (row, (dx, &id)) in dx.chunks_exact(width).zip(tokens).enumerate() {
        add(&mut dtoken[id as usize * width..][..width], dx);
        add(&mut dposition[row % context * width..][..width], dx);
    }
}

fn line(matrix: &[f32], row: usize, width: usize) -> &[f32] {
    &matrix[row * width..][..width]
}

fn add(to: &mut [f32], what: &[f32]) {
    for (to, what) in to.iter_mut().zip(what) {
        *to += what;
    }
}
