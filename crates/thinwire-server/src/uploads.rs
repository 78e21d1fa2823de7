//! Room for messages that are on their way: all of them together take no more memory than [`ROOM`], or one message if that is more.
//!
//! A message has its room before its first byte is kept, so two that each have half of theirs cannot wait for one another.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Bytes of unfinished messages, of all workers together.
pub const ROOM: usize = 256 << 20;

/// What room is counted in.
const UNIT: usize = 4 << 10;

pub struct Uploads {
    units: u32,
    room: Arc<Semaphore>,
    patience: Duration,
}

impl Uploads {
    /// Room for so many bytes; who finds none waits for it, but not longer than `patience`.
    pub fn new(bytes: usize, patience: Duration) -> Uploads {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Uploads { units, room: Arc::new(Semaphore::new(units as usize)), patience }
    }

    /// Room for a message, until it is dropped.
    pub async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, self.units);
        let waiting = Arc::clone(&self.room).acquire_many_owned(units);
        match tokio::time::timeout(self.patience, waiting).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(Status::unavailable("too many messages are being sent at once; send it again")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_messages_together_have_so_much_room() {
        let uploads = Uploads::new(10 * UNIT, Duration::MAX);
        let first = uploads.room(4 * UNIT).await.unwrap();
        let _second = uploads.room(5 * UNIT + 1).await.unwrap();
        let mut third = std::pin::pin!(uploads.room(UNIT));
        tokio::select! {
            biased;
            _ = &mut third => panic!("there is no room"),
            () = std::future::ready(()) => {}
        }
        drop(first);
        let third = third.await.unwrap();
        assert!(Uploads::new(UNIT, Duration::MAX).room(100 * UNIT).await.is_ok(), "one message always has room");
        let impatient = Uploads::new(UNIT, Duration::ZERO);
        let _room = impatient.room(UNIT).await.unwrap();
        assert_eq!(impatient.room(UNIT).await.unwrap_err().code(), tonic::Code::Unavailable);
        drop(third);
    }
}
