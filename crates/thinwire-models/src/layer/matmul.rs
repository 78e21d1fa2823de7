//! Matrix products, by the crate `gemm`, on one thread, over row-major views with strides.

/// A row-major view: `rows` × `columns`, `stride` values from one row to the next; or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub rows: usize,
    pub columns: usize,
    row_stride: isize,
    column_stride: isize,
}

impl View {
    /// `rows` × `columns` with nothing between the rows.
    pub fn new(rows: usize, columns: usize) -> View {
        View::strided(rows, columns, columns)
    }

    pub fn strided(rows: usize, columns: usize, stride: usize) -> View {
        debug_assert!(stride >= columns);
        View { rows, columns, row_stride: stride as isize, column_stride: 1 }
    }

    /// Rows that may share values: for matrices that are only read.
    pub fn overlapping(rows: usize, columns: usize, stride: usize) -> View {
        View { rows, columns, row_stride: stride as isize, column_stride: 1 }
    }

    pub fn transposed(self) -> View {
        View { rows: self.columns, columns: self.rows, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// Values from the first to the last, both counted.
    fn extent(&self) -> usize {
        if self.rows == 0 || self.columns == 0 {
            return 0;
        }
        (self.rows - 1) * self.row_stride as usize + (self.columns - 1) * self.column_stride as usize + 1
    }
}

/// c ← alpha·c + beta·a·b.
#[allow(unsafe_code)]
pub fn matmul(c: (&mut [f32], View), alpha: f32, a: (&[f32], View), b: (&[f32], View), beta: f32) {
    let ((c, c_view), (a, a_view), (b, b_view)) = (c, a, b);
    assert_eq!((c_view.rows, c_view.columns, a_view.columns), (a_view.rows, b_view.columns, b_view.rows));
    assert!(c_view.extent() <= c.len() && a_view.extent() <= a.len() && b_view.extent() <= b.len());
    // SAFETY: the views were just checked to lie within their slices, and c is not aliased, being mutable.
    unsafe {
        gemm::gemm(
            c_view.rows,
            c_view.columns,
            a_view.columns,
            c.as_mut_ptr(),
            c_view.column_stride,
            c_view.row_stride,
            alpha != 0.0,
            a.as_ptr(),
            a_view.column_stride,
            a_view.row_stride,
            b.as_ptr(),
            b_view.column_stride,
            b_view.row_stride,
            alpha,
            beta,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
