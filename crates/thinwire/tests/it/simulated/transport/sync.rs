//! Stand-ins for the locks and the clock of the engine's `transport/sync.rs`: the same calls, and every one is a place where the
//! [`scheduler`](super::scheduler) may let another thread run.

use super::scheduler::{here, point};
use std::ops::{Deref, DerefMut};
use std::sync::{self, LazyLock, LockResult, PoisonError};
use std::time::{Duration, Instant};

/// The virtual time, as threads ask for it.
pub fn now() -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    here(|scheduler, _| *BEGINNING + scheduler.time())
}

/// Its address is its name.
#[derive(Default)]
pub struct Mutex<T>(sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` while its thread waits for a wake-up.
    inner: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        here(|scheduler, me| scheduler.lock(me, self.name()));
        // Nobody else has it: the scheduler has seen to that.
        Ok(MutexGuard { mutex: self, inner: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("locked")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            here(|scheduler, me| scheduler.unlock(me, self.mutex.name()));
        }
    }
}

/// Its address is its name, so it must have a size.
#[derive(Default)]
pub struct Condvar {
    _size: u8,
}

/// Whether the time was over.
pub struct TimedOut(bool);

impl TimedOut {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub fn wait_timeout<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, TimedOut)> {
        let mutex = guard.mutex;
        drop(guard.inner.take());
        let timed_out = here(|scheduler, me| scheduler.wait(me, self.name(), mutex.name(), most));
        guard.inner = Some(mutex.0.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((guard, TimedOut(timed_out)))
    }

    pub fn notify_one(&self) {
        point();
        here(|scheduler, _| scheduler.wake(self.name(), false));
    }

    pub fn notify_all(&self) {
        point();
        here(|scheduler, _| scheduler.wake(self.name(), true));
    }
}
