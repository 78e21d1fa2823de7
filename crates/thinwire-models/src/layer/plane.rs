//! How an image lies in memory: pixel after pixel, row after row, all channels of a pixel together, and a border of one
//! pixel around it.
//!
//! With the border, a 3×3 window never leaves the image, and with the channels together the three pixels of a window's row
//! are one run of values. A convolution is then a matrix product over the image as it lies (see [`conv`](super::conv)).
//!
//! Who reads a border must have written it: convolutions read it, and expect zeros; what they write there is meaningless,
//! and no other layer looks at it.

/// The size of an image, without its border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    pub height: usize,
    pub width: usize,
}

impl Plane {
    pub fn new(height: usize, width: usize) -> Plane {
        Plane { height, width }
    }

    /// Pixels without the border.
    pub fn area(&self) -> usize {
        self.height * self.width
    }

    /// Pixels with the border: how many a buffer holds.
    pub fn pixels(&self) -> usize {
        (self.height + 2) * self.pitch()
    }

    /// Pixels from one row to the next.
    pub fn pitch(&self) -> usize {
        self.width + 2
    }

    /// Where the first pixel of row `y` lies, border not counted.
    pub fn row(&self, y: usize) -> usize {
        (y + 1) * self.pitch() + 1
    }

    /// Pixels from the first to the last within the border, both counted; among them the border between the rows.
    pub fn span(&self) -> usize {
        self.row(self.height - 1) + self.width - self.row(0)
    }

    /// The plane that every second pixel (for `stride` 2) makes.
    pub fn strided(&self, stride: usize) -> Plane {
        Plane::new(self.height.div_ceil(stride), self.width.div_ceil(stride))
    }
}
