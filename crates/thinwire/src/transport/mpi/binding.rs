//! The few MPI calls that the transport needs, made safe.
//!
//! `mpi` (rsmpi) borrows a buffer for the life of a scope. Here a message is under way while its sender packs the next, so a
//! [`Flight`] owns its buffer instead, and keeps it until MPI is done with it. That is the reason for the `unsafe` here, and all
//! of it: every call gets pointers to memory that this module holds, and handles that it has made.

#![allow(unsafe_code)]

use mpi::ffi;
use mpi::traits::AsRaw;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What MPI says went wrong.
pub type Result<T> = std::result::Result<T, String>;

/// A communicator of our own: nobody else's messages arrive in it, and its errors come back instead of ending the process.
pub struct Comm(ffi::MPI_Comm);

// SAFETY: MPI is initialised for calls from any thread, one at a time (`Threading::Serialized`), which `calls` sees to; handles are
// plain values.
unsafe impl Send for Comm {}
// SAFETY: likewise.
unsafe impl Sync for Comm {}

/// Held during every call of MPI.
pub fn calls() -> MutexGuard<'static, ()> {
    static CALLS: Mutex<()> = Mutex::new(());
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message under way, in or out, and the buffer it is in.
pub struct Flight {
    request: ffi::MPI_Request,
    buffer: Vec<u8>,
    done: bool,
}

// SAFETY: as for `Comm`.
unsafe impl Send for Flight {}

/// A message that has arrived, or begun to: nobody else will get it.
pub struct Arrival {
    message: ffi::MPI_Message,
    pub from: usize,
    pub len: usize,
}

fn check(code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut len = 0;
    // SAFETY: room for the longest text there is.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) };
    Err(String::from_utf8_lossy(&text[..len.clamp(0, text.len() as c_int) as usize]).into_owned())
}

/// MPI counts in C's int.
fn length(bytes: usize) -> Result<c_int> {
    c_int::try_from(bytes).map_err(|_| {
        format!("a message of {bytes} bytes, where MPI takes at most {}; choose a smaller bucket", c_int::MAX)
    })
}

impl Comm {
    /// A copy of the world's communicator. All processes must call this together.
    pub fn copy_of(world: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Result<Comm> {
        let mut copy = MaybeUninit::uninit();
        let _one_at_a_time = calls();
        // SAFETY: `copy` is written when the call succeeds, and used only then.
        unsafe {
            check(ffi::MPI_Comm_dup(world.as_raw(), copy.as_mut_ptr()))?;
            let copy = copy.assume_init();
            check(ffi::MPI_Comm_set_errhandler(copy, ffi::RSMPI_ERRORS_RETURN))?;
            Ok(Comm(copy))
        }
    }

    /// Sends what is in `buffer`.
    pub fn send(&self, to: usize, tag: c_int, buffer: Vec<u8>) -> Result<Flight> {
        let count = length(buffer.len())?;
        let mut request = MaybeUninit::uninit();
        let _one_at_a_time = calls();
        // SAFETY: the flight holds the buffer, whose memory stays where it is when the `Vec` moves, until MPI is done.
        unsafe {
            let (data, byte) = (buffer.as_ptr().cast(), ffi::RSMPI_UINT8_T);
            check(ffi::MPI_Isend(data, count, byte, to as c_int, tag, self.0, request.as_mut_ptr()))?;
            Ok(Flight { request: request.assume_init(), buffer, done: false })
        }
    }

    /// The next message from `from`, or from anyone, if there is one.
    pub fn probe(&self, from: Option<usize>, tag: c_int) -> Result<Option<Arrival>> {
        let (mut flag, mut count) = (0, 0);
        let (mut message, mut status) = (MaybeUninit::uninit(), MaybeUninit::<ffi::MPI_Status>::uninit());
        let _one_at_a_time = calls();
        // SAFETY: `message` and `status` are written when `flag` is, and used only then.
        unsafe {
            let from = from.map_or(ffi::RSMPI_ANY_SOURCE, |rank| rank as c_int);
            check(ffi::MPI_Improbe(from, tag, self.0, &mut flag, message.as_mut_ptr(), status.as_mut_ptr()))?;
            if flag == 0 {
                return Ok(None);
            }
            check(ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count))?;
            let from = status.assume_init().MPI_SOURCE as usize;
            Ok(Some(Arrival { message: message.assume_init(), from, len: count.max(0) as usize }))
        }
    }
}

impl Arrival {
    /// Receives it into `buffer`, which is made as long as the message.
    pub fn receive(mut self, mut buffer: Vec<u8>) -> Result<Flight> {
        buffer.resize(self.len, 0);
        let count = length(self.len)?;
        let mut request = MaybeUninit::uninit();
        let _one_at_a_time = calls();
        // SAFETY: the flight holds the buffer, as long as the message, until MPI is done.
        unsafe {
            let (data, byte) = (buffer.as_mut_ptr().cast(), ffi::RSMPI_UINT8_T);
            check(ffi::MPI_Imrecv(data, count, byte, &mut self.message, request.as_mut_ptr()))?;
            Ok(Flight { request: request.assume_init(), buffer, done: false })
        }
    }
}

impl Flight {
    /// Whether MPI is done with the buffer.
    pub fn has_landed(&mut self) -> Result<bool> {
        if !self.done {
            let mut flag = 0;
            let _one_at_a_time = calls();
            // SAFETY: the request is live: it was not done before.
            check(unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) })?;
            self.done = flag != 0;
        }
        Ok(self.done)
    }

    /// The buffer, after it has landed.
    pub fn into_buffer(mut self) -> Vec<u8> {
        assert!(self.done, "the message is still under way");
        std::mem::take(&mut self.buffer)
    }
}

impl Drop for Flight {
    /// Memory that MPI may still read or write is given up rather than freed.
    fn drop(&mut self) {
        if !self.done {
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}
