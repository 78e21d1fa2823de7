//! A network between one worker and the server, that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub struct Wire {
    pub address: SocketAddr,
    cut_until: Arc<Mutex<Instant>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    ended: Arc<AtomicBool>,
}

impl Wire {
    pub fn new(server: SocketAddr) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire {
            address: listener.local_addr().unwrap(),
            cut_until: Arc::new(Mutex::new(Instant::now())),
            open: Arc::default(),
            ended: Arc::default(),
        };
        let (cut, open, ended) = (Arc::clone(&wire.cut_until), Arc::clone(&wire.open), Arc::clone(&wire.ended));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                if Instant::now() < *cut.lock().unwrap() {
                    continue; // closed at once
                }
                let Ok(onward) = TcpStream::connect(server) else { continue };
                let _ = (stream.set_nodelay(true), onward.set_nodelay(true));
                open.lock().unwrap().extend([stream.try_clone().unwrap(), onward.try_clone().unwrap()]);
                for (mut from, mut to) in [(stream.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, stream)]
                {
                    std::thread::spawn(move || {
                        let mut piece = [0; 1 << 14];
                        while let Ok(read @ 1..) = from.read(&mut piece) {
                            if to.write_all(&piece[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        wire
    }

    /// For so long; what is open is closed.
    pub fn cut(&self, time: Duration) {
        *self.cut_until.lock().unwrap() = Instant::now() + time;
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // wakes whoever accepts
    }
}
