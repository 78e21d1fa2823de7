//! Convolution of one image without bias: 3×3 or 1×1, stride 1 or more, the border counting as zeros (PyTorch's
//! `Conv2d(padding=kernel // 2, bias=False)`).
//!
//! Weights lie as height × width × channels in × channels out. An image lies as [`Plane`] has it, so the three pixels under
//! a row of the 3×3 window are one run of 3·channels values, and the next window's run begins `channels` values later. The
//! runs of all windows are thus the rows of a matrix that overlaps itself in the image as it lies, and
//!
//! ```text
//! y = Σ over the window's rows k:  runs_k(x) · w_k          dw_k += runs_k(x)ᵀ · dy          dx = Σ_k runs_k(dy) · flipped(w)_k
//! ```
//!
//! needs no copy. This is so for stride 1 only. With another stride, or so few channels that the runs are too short for a
//! matrix product, the windows are copied out to be the rows of a matrix ("im2col").

use super::matmul::{View, matmul};
use super::plane::Plane;

#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub plane: Plane,
    pub channels_in: usize,
    pub channels_out: usize,
    /// Height and width of the window: 1 or 3.
    pub kernel: usize,
    pub stride: usize,
}

impl Conv {
    /// The plane of what comes out.
    pub fn output(&self) -> Plane {
        self.plane.strided(self.stride)
    }

    /// How many weights there are.
    pub fn weights(&self) -> usize {
        self.kernel * self.run() * self.channels_out
    }

    /// How many values of scratch all functions here want.
    pub fn scratch(&self) -> usize {
        if self.in_place() { 0 } else { self.output().span() * self.kernel * self.run() }
    }

    /// Values of x under one row of the window.
    fn run(&self) -> usize {
        self.kernel * self.channels_in
    }

    /// Whether the windows can be read where they lie.
    fn in_place(&self) -> bool {
        self.kernel == 3 && self.stride == 1 && self.channels_in >= 8
    }

    /// y ← x ∗ weight. The border of x must be zeros; the border of y has no meaning afterwards.
    pub fn forward(&self, y: &mut [f32], x: &[f32], weight: &[f32], scratch: &mut [f32]) {
        if self.in_place() {
            return slide(self.plane, (y, self.channels_out), (x, self.channels_in), weight, 0.0);
        }
        let (span, window) = (self.output().span(), self.kernel * self.run());
        self.copy_windows(x, scratch);
        let y = (&mut y[self.output().row(0) * self.channels_out..], View::new(span, self.channels_out));
        matmul(y, 0.0, (scratch, View::new(span, window)), (weight, View::new(window, self.channels_out)), 1.0);
    }

    /// grad_weight += the gradient of the weights. The borders of x and dy must be zeros.
    pub fn backward_weight(&self, grad_weight: &mut [f32], x: &[f32], dy: &[f32], scratch: &mut [f32]) {
        let span = self.output().span();
        let dy = (&dy[self.output().row(0) * self.channels_out..], View::new(span, self.channels_out));
        if !self.in_place() {
            let window = self.kernel * self.run();
            self.copy_windows(x, scratch);
            let windows = (&*scratch, View::new(span, window).transposed());
            return matmul((grad_weight, View::new(window, self.channels_out)), 1.0, windows, dy, 1.0);
        }
        let of_row = View::new(self.run(), self.channels_out);
        for (k, grad) in grad_weight.chunks_exact_mut(self.run() * self.channels_out).enumerate() {
            let runs = (&x[k * self.plane.pitch() * self.channels_in..], self.runs().transposed());
            matmul((grad, of_row), 1.0, runs, dy, 1.0);
        }
    }

    /// dx ← keep·dx + the gradient of the input. The border of dy must be zeros; the border of dx has no meaning afterwards.
    ///
    /// `flipped` are the weights as [`flip`](Conv::flip) has them.
    pub fn backward_input(&self, dx: &mut [f32], keep: f32, dy: &[f32], flipped: &[f32], scratch: &mut [f32]) {
        if self.in_place() {
            return slide(self.plane, (dx, self.channels_in), (dy, self.channels_out), flipped, keep);
        }
        let (span, window) = (self.output().span(), self.kernel * self.run());
        let dy = (&dy[self.output().row(0) * self.channels_out..], View::new(span, self.channels_out));
        matmul((scratch, View::new(span, window)), 0.0, dy, (flipped, View::new(self.channels_out, window)), 1.0);
        if keep == 0.0 {
            dx.fill(0.0);
        }
        self.add_windows(dx, scratch);
    }

    /// The weights as `backward_input` wants them; worth doing once for many images.
    ///
    /// With stride 1 the gradient of the input is itself a convolution, with the window turned by half a circle and
    /// channels in and out exchanged. Otherwise they are transposed: channels out × the window.
    pub fn flip(&self, weight: &[f32], flipped: &mut [f32]) {
        let taps = self.kernel * self.kernel;
        let (ins, outs) = (self.channels_in, self.channels_out);
        for (tap, weight) in weight.chunks_exact(ins * outs).enumerate() {
            let (start, to_out, to_in) =
                if self.in_place() { ((taps - 1 - tap) * ins * outs, ins, 1) } else { (tap * ins, taps * ins, 1) };
            for (channel_in, row) in weight.chunks_exact(outs).enumerate() {
                for (channel_out, &value) in row.iter().enumerate() {
                    flipped[start + channel_out * to_out + channel_in * to_in] = value;
                }
            }
        }
    }

    fn runs(&self) -> View {
        View::overlapping(self.plane.span(), self.run(), self.channels_in)
    }

    /// Where in the image the run of row `k` of the window of output pixel (y, x) begins, and where in `windows`.
    fn run_at(&self, y: usize, x: usize, k: usize) -> (usize, usize) {
        let inside = 1 - self.kernel / 2; // a 1×1 window begins within the border, a 3×3 window on it
        let pixel = (y * self.stride + k + inside) * self.plane.pitch() + x * self.stride + inside;
        let window = y * self.output().pitch() + x;
        (pixel * self.channels_in, (window * self.kernel + k) * self.run())
    }

    /// windows ← the windows of x, one a row. The rows of border pixels become 0: they must not carry over what scratch
    /// held before, which may be NaN.
    fn copy_windows(&self, x: &[f32], windows: &mut [f32]) {
        let (output, window) = (self.output(), self.kernel * self.run());
        for y in 1..output.height {
            windows[(y * output.pitch() - 2) * window..][..2 * window].fill(0.0);
        }
        self.each_run(|of_image, of_window| {
            windows[of_window..][..self.run()].copy_from_slice(&x[of_image..][..self.run()]);
        });
    }

    /// The way back: each value of the windows is added where it came from.
    fn add_windows(&self, dx: &mut [f32], windows: &[f32]) {
        self.each_run(|of_image, of_window| {
            for (dx, window) in dx[of_image..][..self.run()].iter_mut().zip(&windows[of_window..][..self.run()]) {
                *dx += window;
            }
        });
    }

    fn each_run(&self, mut f: impl FnMut(usize, usize)) {
        let output = self.output();
        for y in 0..output.height {
            for x in 0..output.width {
                for k in 0..self.kernel {
                    let (of_image, of_window) = self.run_at(y, x, k);
                    f(of_image, of_window);
                }
            }
        }
    }
}

/// y ← keep·y + x ∗ weight for a 3×3 window and stride 1, without a copy.
fn slide(plane: Plane, y: (&mut [f32], usize), x: (&[f32], usize), weight: &[f32], keep: f32) {
    let ((y, channels_out), (x, channels_in)) = (y, x);
    let y = &mut y[plane.row(0) * channels_out..];
    let run = 3 * channels_in;
    for (k, weight) in weight.chunks_exact(run * channels_out).enumerate() {
        let keep = if k == 0 { keep } else { 1.0 };
        let runs = (&x[k * plane.pitch() * channels_in..], View::overlapping(plane.span(), run, channels_in));
        let weight = (weight, View::new(run, channels_out));
        matmul((&mut *y, View::new(plane.span(), channels_out)), keep, runs, weight, 1.0);
    }
}
