//! The average of a whole image, channel by channel.

use super::plane::Plane;

/// mean ← the average pixel of x.
pub fn forward(plane: Plane, mean: &mut [f32], x: &[f32]) {
    let channels = mean.len();
    mean.fill(0.0);
    for y in 0..plane.height {
        for pixel in x[plane.row(y) * channels..][..plane.width * channels].chunks_exact(channels) {
            mean.iter_mut().zip(pixel).for_each(|(mean, value)| *mean += value);
        }
    }
    mean.iter_mut().for_each(|mean| *mean /= plane.area() as f32);
}

/// dx ← what each pixel did to the average. The border becomes 0.
pub fn backward(plane: Plane, dx: &mut [f32], d_mean: &[f32]) {
    let channels = d_mean.len();
    let share = 1.0 / plane.area() as f32;
    dx.fill(0.0);
    for y in 0..plane.height {
        for pixel in dx[plane.row(y) * channels..][..plane.width * channels].chunks_exact_mut(channels) {
            pixel.iter_mut().zip(d_mean).for_each(|(dx, d_mean)| *dx = d_mean * share);
        }
    }
}
