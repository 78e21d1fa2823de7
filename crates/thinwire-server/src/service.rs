//! What workers ask of a server, and what they are told: the gRPC service of `proto/run.proto`.

use crate::checked::Checked;
use crate::disk::File;
use crate::door::Visitor;
use crate::hall::{Hall, Stats, blocking};
use crate::kept::newest_file;
use crate::log::Record;
use crate::proto::run_server::Run;
use crate::proto::{
    Counted, FollowRequest, Heard, JoinRequest, Note, Receipt, RoundPart, Seat, SendPart, SnapshotPart,
    SnapshotRequest, Welcome, note, receipt,
};
use crate::table::{Refusal, Verdict};
use crate::uploads::{ROOM, Uploads};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Of the protocol.
pub const VERSION: u32 = 1;

/// The longest piece of a message.
pub const PART: usize = 1 << 20;

/// The longest pause between two pieces of one message.
const PAUSE: Duration = Duration::from_secs(30);

type Answer<T> = Result<Response<T>, Status>;

/// Snapshots that are sent at the same time.
pub const SNAPSHOTS: usize = 16;

pub struct Service {
    hall: Arc<Hall>,
    snapshots: Arc<Semaphore>,
    uploads: Uploads,
}

impl Service {
    pub fn new(hall: Arc<Hall>) -> Service {
        // What has come takes that much memory anyway: so no worker of the run can keep another's message out.
        let room = hall.checker.longest().saturating_mul(hall.rules.workers).max(ROOM);
        Service { hall, snapshots: Arc::new(Semaphore::new(SNAPSHOTS)), uploads: Uploads::new(room, PAUSE) }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let text = refusal.to_string();
        match refusal {
            Refusal::Full(_) | Refusal::TooMany(_) => Status::resource_exhausted(text),
            Refusal::Name => Status::invalid_argument(text),
            Refusal::Replaced => Status::aborted(text),
            Refusal::Restarted | Refusal::GivenAway | Refusal::Superseded | Refusal::Making => {
                Status::unavailable(text)
            }
            Refusal::Early(..) => Status::failed_precondition(text),
            Refusal::Another(_) => Status::already_exists(text),
        }
    }
}

fn internal(error: impl std::fmt::Display) -> Status {
    tracing::error!(%error, "a worker could not be answered");
    Status::unknown("the server has a problem; its log says which")
}

fn unwritten(error: crate::Error) -> Status {
    tracing::error!(%error, "a worker could not be given a seat");
    Status::unavailable("the server cannot write down who has which seat; its log says why")
}

impl Service {
    fn seat(&self, seat: Option<Seat>) -> Result<(u32, u64), Status> {
        let seat = seat.ok_or_else(|| Status::invalid_argument("no seat is named"))?;
        self.hall.table().check(seat.slot, seat.session)?;
        Ok((seat.slot, seat.session))
    }

    pub(crate) fn welcome(&self, request: &JoinRequest, visitor: Option<&Visitor>) -> Result<Welcome, Status> {
        let (hall, spec) = (&self.hall, &self.hall.spec);
        if request.version != VERSION {
            let text = format!("this server speaks version {VERSION} of the protocol, not {}", request.version);
            return Err(Status::failed_precondition(text));
        }
        if !request.run.is_empty() && request.run != spec.id {
            let named = request.run.chars().take(40).collect::<String>(); // a refusal does not echo long input
            let text = match spec.before.contains(&request.run) {
                true => format!(
                    "run {} was taken back to round {} and is {} now; what this worker has is of later rounds: start it \
                     over by --overwrite",
                    named,
                    spec.back_to.unwrap_or_default(),
                    spec.id
                ),
                false => format!("this is run {}, not {named}", spec.id),
            };
            return Err(Status::failed_precondition(text));
        }
        let identity = match visitor {
            Some(visitor) => visitor.identity(&request.name)?,
            None => String::new(),
        };
        let (slot, session, counted) = {
            let mut table = hall.table();
            let joined = table.join(&request.name, &identity, hall.now())?;
            // Nobody is told of a seat that the next server would give to another.
            hall.keep_roster(&table).map_err(unwritten)?;
            (joined.0, joined.1, table.counted(joined.0))
        };
        hall.seated.send_replace(());
        Ok(Welcome {
            run: spec.id.clone(),
            slot,
            session,
            config: serde_json::to_string(&spec.config).map_err(internal)?,
            job: spec.job.clone(),
            parameters: spec.parameters as u64,
            workers: spec.workers as u32,
            steps: spec.steps,
            rounds: *hall.rounds.borrow(),
            oldest: hall.shelf.oldest(),
            counted,
        })
    }

    /// A stream of rounds from `from` on begins.
    pub(crate) fn following(&self, seat: Option<Seat>, from: u64) -> Result<Following, Status> {
        let (slot, session) = self.seat(seat)?;
        let (oldest, rounds) = (self.hall.shelf.oldest(), *self.hall.rounds.borrow());
        if from < oldest || from > rounds {
            return Err(Status::not_found(format!("the log has the rounds {oldest} to {rounds}, not {from}")));
        }
        self.hall.table().follows(slot, session)?;
        self.hall.changed.notify_one();
        Ok(Following(Arc::clone(&self.hall), slot, session))
    }

    pub(crate) fn hear(&self, note: Note) -> Result<(), Status> {
        let (slot, session) = self.seat(note.seat)?;
        match note.what() {
            note::What::Ready => self.hall.table().ready(slot, session, note.round)?,
            note::What::Leaves => {
                self.hall.table().leaves(slot, session)?;
                tracing::info!(slot, "a worker leaves");
            }
        }
        self.hall.changed.notify_one();
        Ok(())
    }

    /// A message begins to come: what it must be, if its round is open; none if it is too late for it.
    pub(crate) fn begin(&self, seat: Option<Seat>, round: u64) -> Result<Option<Incoming>, Status> {
        let hall = &self.hall;
        let (slot, session) = self.seat(seat)?;
        let verdict = hall.table().may_send(slot, session, round)?;
        let (Verdict::Open(expected) | Verdict::Past(expected)) = verdict else { return Ok(None) };
        let longest = hall.checker.length(&expected).map_err(internal)?;
        let upload = hall.table().begin_upload(slot, session)?;
        Ok(Some(Incoming { slot, session, round, upload, longest, expected }))
    }

    /// The whole message, no longer than such a message may be, of a round that is open; none if it is too late for it.
    async fn take(&self, mut parts: Streaming<SendPart>) -> Result<receipt::Verdict, Status> {
        let first = next_part(&mut parts).await?.ok_or_else(|| Status::invalid_argument("an empty message"))?;
        let Some(incoming) = self.begin(first.seat, first.round)? else { return Ok(receipt::Verdict::Late) };
        let longest = incoming.longest;
        let place = self.uploads.begin(incoming.slot, longest);
        let whole = place.in_time(async {
            let room = self.uploads.room(longest).await?;
            Ok((self.whole(first.data, &mut parts, longest, || incoming.goes_on(&self.hall)).await?, room))
        });
        let (message, _room) = whole.await?;
        let hall = Arc::clone(&self.hall);
        blocking(move || incoming.end(&hall, message, first.loss)).await
    }

    /// The pieces of a message of at most `longest` bytes, put together, as long as `goes_on` says so.
    async fn whole(
        &self,
        first: bytes::Bytes,
        parts: &mut Streaming<SendPart>,
        longest: usize,
        goes_on: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Vec<u8>, Status> {
        let mut message = Vec::with_capacity(longest.min(first.len().max(1) * 4));
        let mut part = Some(first);
        while let Some(data) = part {
            if message.len() + data.len() > longest {
                return Err(Status::invalid_argument(format!(
                    "a message longer than the {longest} bytes of this round"
                )));
            }
            message.extend_from_slice(&data);
            Stats::add(&self.hall.stats.bytes_received, data.len() as u64);
            part = next_part(parts).await?.map(|part| part.data);
            goes_on()?;
        }
        Ok(message)
    }
}

/// A message that is on its way.
pub(crate) struct Incoming {
    slot: u32,
    session: u64,
    round: u64,
    upload: u64,
    longest: usize,
    expected: Arc<[u8]>,
}

impl Incoming {
    #[cfg(test)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    #[cfg(test)]
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// Whether its worker has begun no other.
    pub(crate) fn goes_on(&self, hall: &Hall) -> Result<(), Refusal> {
        hall.table().check_upload(self.slot, self.session, self.upload)
    }

    /// It is whole: it is checked, and waits for its round.
    pub(crate) fn end(&self, hall: &Hall, message: Vec<u8>, loss: Option<f64>) -> Result<receipt::Verdict, Status> {
        let (slot, round) = (self.slot, self.round);
        let checked = Checked::of(hall, &self.expected, message, slot);
        let mut checked = checked.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let arrived = {
            let (mut table, message) = (hall.table(), std::mem::take(&mut checked.message));
            let arrived = table.arrive(slot, self.session, round, message, loss, hall.now());
            // In one piece with the above: the keeper may close the round as soon as it sees the table.
            if matches!(arrived, Ok(Verdict::Open(_))) {
                hall.came(&mut table, slot, &checked);
            }
            arrived
        };
        match arrived {
            Ok(Verdict::Open(_)) => {
                tracing::trace!(slot, round, digest = checked.digest, "message");
                hall.changed.notify_one();
                Ok(receipt::Verdict::Taken)
            }
            Ok(Verdict::Late | Verdict::Past(_)) => Ok(receipt::Verdict::Late),
            // The first stands, and the worker will find that the other is not the one counted.
            Err(Refusal::Another(round)) => {
                tracing::warn!(slot, round, "a second, different message of one worker");
                Ok(receipt::Verdict::Late)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }
}

async fn next_part(parts: &mut Streaming<SendPart>) -> Result<Option<SendPart>, Status> {
    match tokio::time::timeout(PAUSE, parts.message()).await {
        Ok(part) => part,
        Err(_) => Err(Status::deadline_exceeded(format!("no piece of the message for {} s", PAUSE.as_secs()))),
    }
}

/// A round in pieces.
pub(crate) fn parts(record: &Record) -> impl Iterator<Item = RoundPart> {
    let counted = record.counted.iter().map(|counted| Counted { slot: counted.slot, digest: counted.digest });
    let (round, message) = (record.round, record.message.clone());
    let mut counted = Some(counted.collect());
    let count = message.len().div_ceil(PART).max(1);
    (0..count).map(move |i| RoundPart {
        round,
        counted: counted.take().unwrap_or_default(),
        data: message.slice(i * PART..((i + 1) * PART).min(message.len())),
        last: i + 1 == count,
    })
}

/// Tells the table when a worker no longer follows, however that comes about.
pub(crate) struct Following(Arc<Hall>, u32, u64);

impl Following {
    /// Whether the seat is still this worker's. One whose seat another has taken would wait for a round that no longer waits for it.
    pub(crate) fn check(&self) -> Result<(), Status> {
        Ok(self.0.table().check(self.1, self.2)?)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.table().lost(self.1, self.2, self.0.now());
        self.0.changed.notify_one();
        tracing::info!(slot = self.1, "a worker is gone");
    }
}

#[tonic::async_trait]
impl Run for Service {
    async fn join(&self, request: Request<JoinRequest>) -> Answer<Welcome> {
        let visitor = request.extensions().get::<Arc<Visitor>>().cloned();
        let request = request.into_inner();
        let mut rounds = self.hall.rounds.subscribe();
        if self.hall.table().is_making(&request.name) {
            let _ = tokio::time::timeout(PAUSE, rounds.changed()).await;
        }
        let welcome = self.welcome(&request, visitor.as_deref())?;
        tracing::info!(name = request.name, slot = welcome.slot, round = welcome.rounds, "a worker joins");
        Ok(Response::new(welcome))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotPart, Status>>;

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Answer<Self::SnapshotStream> {
        self.seat(request.into_inner().seat)?;
        let hall = Arc::clone(&self.hall);
        // Each takes a thread for as long as its worker takes to read.
        let busy = || Status::unavailable("too many snapshots are being fetched");
        let place = Arc::clone(&self.snapshots).try_acquire_owned().map_err(|_| busy())?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::task::spawn_blocking(move || {
            let _place = place;
            let sent = send_snapshot(&hall, &sender);
            if let Err(error) = sent {
                let _ = sender.blocking_send(Err(internal(error)));
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type FollowStream = ReceiverStream<Result<RoundPart, Status>>;

    async fn follow(&self, request: Request<FollowRequest>) -> Answer<Self::FollowStream> {
        let FollowRequest { seat, from } = request.into_inner();
        let following = self.following(seat, from)?;
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(async move { follow(following, from, sender).await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn send(&self, request: Request<Streaming<SendPart>>) -> Answer<Receipt> {
        let verdict = self.take(request.into_inner()).await?;
        Ok(Response::new(Receipt { verdict: verdict.into() }))
    }

    async fn tell(&self, request: Request<Note>) -> Answer<Heard> {
        self.hear(request.into_inner())?;
        Ok(Response::new(Heard {}))
    }
}

/// Sends every round from `next` on, one at a time: a worker that does not read keeps nothing in memory but the one it is at.
async fn follow(following: Following, mut next: u64, sender: mpsc::Sender<Result<RoundPart, Status>>) {
    let hall = Arc::clone(&following.0);
    let (mut rounds, mut seated) = (hall.rounds.subscribe(), hall.seated.subscribe());
    loop {
        if let Err(status) = following.check() {
            let _ = sender.send(Err(status)).await;
            return;
        }
        while next < *rounds.borrow_and_update() {
            let read: crate::Result<_> = match hall.last(next) {
                Some(last) => Ok(Some(last)),
                None => {
                    let shelf = hall.shelf.clone();
                    blocking(move || Ok(shelf.read(next)?.map(Arc::new))).await
                }
            };
            let record = match found(next, read) {
                Ok(record) => record,
                Err(status) => {
                    let _ = sender.send(Err(status)).await;
                    return;
                }
            };
            for part in parts(&record) {
                Stats::add(&hall.stats.bytes_sent, part.data.len() as u64);
                if sender.send(Ok(part)).await.is_err() {
                    return;
                }
            }
            next += 1;
        }
        tokio::select! {
            () = sender.closed() => return,
            changed = rounds.changed() => if changed.is_err() { return },
            changed = seated.changed() => if changed.is_err() { return },
        }
    }
}

/// A round that was looked up in the log.
pub(crate) fn found(round: u64, read: crate::Result<Option<Arc<Record>>>) -> Result<Arc<Record>, Status> {
    read.map_err(internal)?.ok_or_else(|| Status::not_found(format!("round {round} is no longer in the log")))
}

/// The newest snapshot's file, and of how many rounds it is.
pub(crate) fn open_snapshot(dir: &Path) -> crate::Result<(u64, File, PathBuf)> {
    loop {
        let (rounds, path) = newest_file(dir)?;
        match File::open(&path) {
            Ok(file) => return Ok((rounds, file, path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // a newer one has just replaced it
            Err(error) => return Err(crate::Error::io(&path)(error)),
        }
    }
}

/// The newest snapshot, from the disk.
fn send_snapshot(hall: &Hall, sender: &mpsc::Sender<Result<SnapshotPart, Status>>) -> crate::Result<()> {
    let (rounds, mut file, path) = open_snapshot(&hall.dir)?;
    // It is written before its last round is shown to anyone: whoever has it must not be ahead of the rounds that there are.
    while *hall.rounds.borrow() < rounds {
        if sender.is_closed() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let length = file.length().map_err(crate::Error::io(&path))?;
    let mut left = length;
    loop {
        let mut data = vec![0; left.min(PART as u64) as usize];
        file.read_exact(&mut data).map_err(crate::Error::io(&path))?;
        left -= data.len() as u64;
        Stats::add(&hall.stats.bytes_sent, data.len() as u64);
        let part = SnapshotPart { rounds, length, data: data.into() };
        if sender.blocking_send(Ok(part)).is_err() || left == 0 {
            return Ok(());
        }
    }
}
