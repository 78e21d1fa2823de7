//! A server: a run, its keeper, and the door. It runs on threads of its own, and can be held by any program.

use crate::door::{Security, listen};
use crate::error::{Error, Result};
use crate::hall::{Hall, keep};
use crate::local::{self, Announced};
use crate::proto::run_server::RunServer;
use crate::run::Run;
use crate::service::{PART, SNAPSHOTS, Service};
use crate::status::{Status, routes};
use crate::table::Rules;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct Server {
    hall: Arc<Hall>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    keeper: Option<JoinHandle<Result<()>>>,
    runtime: Option<Runtime>,
    announced: Option<Announced>,
}

impl Server {
    /// Serves `run` at `address`, where port 0 is any that is free.
    pub fn start(run: Run, address: SocketAddr, rules: Rules, security: Security) -> Result<Server> {
        security.check(address)?;
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
        // Of the blocking ones, snapshots take a few for as long as their workers read.
        let blocking = SNAPSHOTS + 16;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).max_blocking_threads(blocking).enable_all().build();
        let runtime = runtime.map_err(Error::io("the server's threads"))?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(Error::io(address.to_string()))?;
        let address = listener.local_addr().map_err(Error::io(address.to_string()))?;
        // Before anyone is answered: a worker that waits for this server looks for the token whenever it tries.
        let token = security.token.as_deref().filter(|_| security.announced);
        let announced = token.map(|token| local::announce(address.port(), token)).transpose()?;
        let hall = Arc::new(Hall::new(&run, rules)?);
        let (stop, stopped) = watch::channel(false);
        let service = RunServer::new(Service::new(Arc::clone(&hall))).max_decoding_message_size(PART + (64 << 10));
        let router = tonic::service::Routes::new(service).into_axum_router().merge(routes(Arc::clone(&hall)));
        let router = router.fallback(|| async { axum::http::StatusCode::NOT_FOUND });
        // Certificates that cannot be used are found before anyone is told that the server runs.
        let listening = listen(listener, router, Arc::clone(&hall), security, stopped.clone());
        let (ready, mut listening) = (Duration::from_millis(1), Box::pin(listening));
        if let Ok(ended) = runtime.block_on(async { tokio::time::timeout(ready, &mut listening).await }) {
            return Err(ended.err().unwrap_or(Error::Usage("the server does not listen".to_owned())));
        }
        runtime.spawn(listening);
        let keeper = runtime.spawn(keep(Arc::clone(&hall), run, stopped));
        Ok(Server { hall, address, stop, keeper: Some(keeper), runtime: Some(runtime), announced })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file with its token, if that is announced to workers on this machine.
    pub fn token_file(&self) -> Option<&Path> {
        self.announced.as_ref().map(Announced::path)
    }

    pub fn status(&self) -> Status {
        Status::of(&self.hall)
    }

    /// Whether the run has come to its end, and all workers have left or had `grace` to: one that was cut off shall hear the end too.
    pub fn has_ended(&self, grace: Duration, since: &mut Option<Instant>) -> bool {
        if self.hall.end().is_none() {
            return false;
        }
        let since = since.get_or_insert_with(Instant::now);
        self.hall.table().is_empty(Instant::now()) || since.elapsed() > grace
    }

    /// Whether its keeper has given up: [`Server::stop`] then says why.
    pub fn has_failed(&self) -> bool {
        self.keeper.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Ends the round that is being made, if one is, writes a last snapshot, and stops. What it then was.
    pub fn stop(mut self) -> Result<Status> {
        self.shut_down()?;
        Ok(self.status())
    }

    fn shut_down(&mut self) -> Result<()> {
        let (Some(runtime), Some(keeper)) = (self.runtime.take(), self.keeper.take()) else { return Ok(()) };
        self.stop.send_replace(true);
        let ended = runtime.block_on(keeper);
        runtime.shutdown_timeout(Duration::from_secs(2));
        match ended {
            Ok(ended) => ended,
            Err(error) => Err(Error::Usage(format!("the keeper of the run failed: {error}"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.shut_down();
    }
}
