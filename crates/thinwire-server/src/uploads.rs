//! Room for messages that are on their way: one of each member, and all of them together take no more memory than [`ROOM`], or one
//! message for each worker of the run if that is more.
//!
//! A message has its room before its first byte is kept, so two that each have half of theirs cannot wait for one another. A member
//! that begins another message gives up the one before at once, and whoever sends too slowly is not heard to the end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;

/// Bytes of unfinished messages, of all workers together.
pub const ROOM: usize = 256 << 20;

/// What room is counted in.
const UNIT: usize = 4 << 10;

/// A message may take as long as it takes at so many bytes a second, and [`GRACE`].
const SLOWEST: usize = 64 << 10;
const GRACE: Duration = Duration::from_secs(60);

pub struct Uploads {
    units: u32,
    room: Arc<Semaphore>,
    patience: Duration,
    /// Of each member's last message; when another begins this is dropped.
    last: Mutex<BTreeMap<u32, oneshot::Sender<()>>>,
}

/// A message that is on its way.
pub struct Place {
    limit: Duration,
    /// Ends when its member begins another.
    superseded: oneshot::Receiver<()>,
}

impl Uploads {
    /// Room for so many bytes; who finds none waits for it, but not longer than `patience`.
    pub fn new(bytes: usize, patience: Duration) -> Uploads {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Uploads { units, room: Arc::new(Semaphore::new(units as usize)), patience, last: Mutex::default() }
    }

    /// A message of at most so many bytes of the member in `slot` begins to come; the one before ends.
    pub fn begin(&self, slot: u32, bytes: usize) -> Place {
        let (sender, superseded) = oneshot::channel();
        self.last.lock().unwrap_or_else(PoisonError::into_inner).insert(slot, sender);
        Place { limit: GRACE + Duration::from_secs((bytes / SLOWEST) as u64), superseded }
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

impl Place {
    /// What `work` comes to, unless it takes too long, or its member begins another message.
    pub async fn in_time<T>(self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let (limit, superseded) = (self.limit, self.superseded);
        tokio::select! {
            done = tokio::time::timeout(limit, work) => done.unwrap_or_else(|_| {
                Err(Status::deadline_exceeded(format!("the message was not whole after {} s", limit.as_secs())))
            }),
            _ = superseded => Err(Status::unavailable("the same worker has begun to send another message")),
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

    #[tokio::test]
    async fn a_member_that_begins_another_message_gives_its_room_back_at_once() {
        let uploads = Uploads::new(10 * UNIT, Duration::ZERO);
        let holds = |slot: u32| {
            uploads.begin(slot, UNIT).in_time(async {
                let _room = uploads.room(10 * UNIT).await?;
                std::future::pending::<Result<(), Status>>().await
            })
        };
        let (first, other) = (holds(7), uploads.begin(8, UNIT));
        let again = async {
            tokio::task::yield_now().await; // the first has its room by now
            assert!(uploads.room(UNIT).await.is_err());
            drop(uploads.begin(7, UNIT));
        };
        let (ended, ()) = tokio::join!(first, again);
        assert_eq!(ended.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(other.in_time(uploads.room(10 * UNIT)).await.is_ok(), "of another member nothing has ended");
    }

    #[tokio::test]
    async fn a_message_that_takes_too_long_is_not_waited_for() {
        let uploads = Uploads::new(10 * UNIT, Duration::MAX);
        let place = uploads.begin(1, 100 * SLOWEST);
        assert_eq!(place.limit, Duration::from_secs(160));
        let late = Place { limit: Duration::ZERO, ..place };
        let dribbles = late.in_time(std::future::pending::<Result<(), Status>>());
        assert_eq!(dribbles.await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    }
}
