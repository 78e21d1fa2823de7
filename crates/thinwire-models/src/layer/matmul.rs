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
        assert!(stride >= columns, "rows of {columns} values, {stride} apart, share some");
        View { rows, columns, row_stride: stride as isize, column_stride: 1 }
    }

    /// Rows that may share values: for matrices that are only read.
    pub fn overlapping(rows: usize, columns: usize, stride: usize) -> View {
        View { rows, columns, row_stride: stride as isize, column_stride: 1 }
    }

    pub fn transposed(self) -> View {
        View { rows: self.columns, columns: self.rows, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// Whether `values` are as many as lie between the first and the last of the view. Numbers too large to be added up lie nowhere.
    fn fits(&self, values: &[f32]) -> bool {
        let (Some(rows), Some(columns)) = (self.rows.checked_sub(1), self.columns.checked_sub(1)) else { return true };
        let last = |count: usize, stride: isize| count.checked_mul(usize::try_from(stride).ok()?);
        let down = last(rows, self.row_stride);
        let end = down.zip(last(columns, self.column_stride)).and_then(|(down, across)| down.checked_add(across));
        end.is_some_and(|end| end < values.len())
    }
}

/// c ← alpha·c + beta·a·b.
#[allow(unsafe_code)]
pub fn matmul(c: (&mut [f32], View), alpha: f32, a: (&[f32], View), b: (&[f32], View), beta: f32) {
    let ((c, c_view), (a, a_view), (b, b_view)) = (c, a, b);
    assert_eq!((c_view.rows, c_view.columns, a_view.columns), (a_view.rows, b_view.columns, b_view.rows));
    assert!(c_view.fits(c) && a_view.fits(a) && b_view.fits(b), "a view reaches beyond its values");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn product(a: View) {
        let (mut c, values, b) = ([0.0; 4], [1.0; 4], [1.0; 4]);
        matmul((&mut c, View::new(a.rows, 2)), 0.0, (&values, a), (&b, View::new(a.columns, 2)), 1.0);
    }

    #[test]
    fn a_view_within_its_values_is_taken() {
        product(View::new(2, 2));
        product(View::strided(1, 2, 1000));
        product(View::new(0, 2));
    }

    /// A product that wraps would look small.
    #[test]
    fn a_view_beyond_its_values_is_refused() {
        for (rows, stride) in [(2, 3), (2, usize::MAX), (2, isize::MAX as usize), (3, 1 << 63), (5, 1 << 62)] {
            let view = View::overlapping(rows, 2, stride);
            assert!(std::panic::catch_unwind(|| product(view)).is_err(), "{view:?}");
            assert!(!view.fits(&[0.0; 4]), "{view:?}");
        }
        assert!(std::panic::catch_unwind(|| View::strided(2, 3, 2)).is_err());
    }
}
