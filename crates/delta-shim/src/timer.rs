//! A timer on the clock that goes on while the machine sleeps: a lease runs out meanwhile, and the
//! work must end as soon as the machine is awake.

use std::io;
use std::os::fd::OwnedFd;

use delta_core::time::Millis;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
    set_to: Option<Millis>,
}

impl Timer {
    pub fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor changes, which an OwnedFd's does not"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Timer { fd, set_to: None })
    }

    /// Returns at this moment, or at once when it has passed. May be dropped midway.
    pub async fn at(&mut self, moment: Millis) {
        if self.set_to != Some(moment) {
            let at = Timespec {
                // A moment of zero would switch the timer off.
                tv_sec: moment.0.max(1).div_euclid(1000),
                tv_nsec: (moment.0.max(1).rem_euclid(1000)) * 1_000_000,
            };
            let none = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let once = Itimerspec {
                it_interval: none,
                it_value: at,
            };
            if timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &once).is_err() {
                return;
            }
            self.set_to = Some(moment);
        }
        if let Ok(mut ready) = self.fd.readable().await {
            // Read, so that the next moment is waited for anew.
            let mut count = [0; 8];
            let _ = rustix::io::read(self.fd.get_ref(), &mut count);
            ready.clear_ready();
            self.set_to = None;
        }
    }
}
