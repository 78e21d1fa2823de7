//! What a message costs whatever its length: small ones through TCP to this machine itself, sent and received by two threads. By CPU
//! time, as everything that `plan` adds up.

use anyhow::{Context, Result};
use cpu_time::ThreadTime;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// As long as the engine's header.
const LENGTH: usize = 48;
const MESSAGES: usize = 20_000;

/// CPU seconds a message, sending and receiving included.
pub fn seconds() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a connection to this machine itself")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    std::thread::scope(|scope| {
        let received = scope.spawn(move || -> std::io::Result<f64> {
            let began = ThreadTime::now();
            let mut message = [0; LENGTH];
            for _ in 0..MESSAGES {
                receiver.read_exact(&mut message)?;
            }
            receiver.write_all(&[0])?;
            Ok(began.elapsed().as_secs_f64())
        });
        let began = ThreadTime::now();
        for _ in 0..MESSAGES {
            sender.write_all(&[0; LENGTH])?;
        }
        sender.read_exact(&mut [0])?;
        let took = began.elapsed().as_secs_f64();
        let took = took + received.join().expect("no panic")?;
        Ok(took / MESSAGES as f64)
    })
}
