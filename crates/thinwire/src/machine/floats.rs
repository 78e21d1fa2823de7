//! Vectors as long as the model, on huge pages where the system has them.
//!
//! A pass over hundreds of megabytes in 4 KiB pages spends a good part of its time on page tables. The buffers come from
//! anonymous maps that are advised to use huge pages; how much that gains depends on the machine (`cargo bench` prints both).

use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut};

/// A zeroed vector of f32 whose length never changes.
#[derive(Debug)]
pub struct Floats {
    /// Never empty: the system maps no empty range.
    map: MmapMut,
    len: usize,
}

impl Floats {
    /// Panics when the system has no memory left, like `vec!`.
    pub fn zeroed(len: usize) -> Floats {
        Floats::try_zeroed(len).expect("memory")
    }

    /// The same, where a length comes from a user.
    pub fn try_zeroed(len: usize) -> io::Result<Floats> {
        let bytes = len.checked_mul(4).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(bytes.max(1))?;
        // Advice may be refused (no such pages, not this system); the memory is the same.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Floats { map, len })
    }

    /// With these values.
    pub fn copied(values: &[f32]) -> Floats {
        let mut floats = Floats::zeroed(values.len());
        floats.copy_from_slice(values);
        floats
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map[..4 * self.len])
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.map[..4 * self.len])
    }
}
