//! Messages: headers of whoever, and the owner's mean over messages of whoever.

use crate::{Input, is_short};
use std::cell::RefCell;
use thinwire::Config;
use thinwire::inside::codec::CodecName;
use thinwire::inside::exchange::Owner;
use thinwire::inside::exchange::header::{HEADER_LEN, Header, Operation};

/// A header is read as it is written, or refused.
pub fn header(bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len().min(HEADER_LEN));
    let read = Header::read(bytes, 3);
    match &read {
        Ok((header, payload)) => {
            assert_eq!((&header.to_bytes()[..], *payload), (first, second), "written in another way");
            assert_eq!(Header::contributions_in(bytes), header.contributions);
            header.expect(header, 3, 0).expect("what it is itself");
        }
        Err(error) => is_short(error),
    }
    if let (Ok((ours, _)), Ok((theirs, _))) = (read, Header::read(second, 4)) {
        let same = Header { contributions: ours.contributions, ..theirs } == ours;
        assert_eq!(theirs.expect(&ours, 4, 3).map_err(is_short).is_ok(), same);
    }
}

pub const VALUES: usize = 37;
const BLOCK: usize = 8;

/// A server's half of a run, and how its messages are coded: exact, up.
pub struct Served {
    pub owner: Owner,
    pub exact: Option<CodecName>,
    pub coarse: Option<CodecName>,
}

impl Served {
    fn new(words: &str) -> Served {
        let config = Config::from_toml(&format!("topology = \"central\"\nblock = {BLOCK}\n{words}")).expect("ours");
        let resolved = config.resolved().expect("ours");
        let coarse = resolved.codec_up.or(resolved.codec);
        let owner = config.decide().and_then(|settings| settings.owner(VALUES)).expect("ours");
        Served { owner, exact: resolved.exact_codec, coarse }
    }

    /// What the header of a message up must be, in a round that this optimizer has.
    pub fn expected(&self, coarse: bool, step: u64) -> Header {
        let coarse = coarse && self.coarse.is_some() || self.exact.is_none();
        let (operation, codec) = match coarse {
            true => (Operation::CoarseUp, self.coarse),
            false => (Operation::ExactUp, self.exact),
        };
        Header {
            operation,
            codec: codec.expect("every optimizer has rounds of a kind"),
            step,
            values: VALUES as u64,
            block: BLOCK as u32,
            blocks: (0, VALUES.div_ceil(BLOCK) as u32),
            contributions: 1,
            digest: 0x1122_3344_5566_7788,
        }
    }

    /// Calls `work` with one of several runs; what an earlier input left in E is gone.
    pub fn one<T>(choice: u8, work: impl FnOnce(&mut Served) -> T) -> T {
        thread_local! {
            static ALL: RefCell<Vec<Served>> = RefCell::new(CONFIGURATIONS.map(Served::new).into());
        }
        ALL.with_borrow_mut(|all| {
            let served = &mut all[usize::from(choice) % CONFIGURATIONS.len()];
            served.owner.residual().fill(0.0);
            work(served)
        })
    }
}

const CONFIGURATIONS: [&str; 10] = [
    "name = \"adam\"",
    "name = \"one-bit-adam\"\nwarmup = 10",
    "name = \"zero-one-adam\"",
    "name = \"zero-one-adam\"\nresidual = \"bf16\"\ncodec_up = \"power3\"\ncodec_down = \"sign\"",
    "name = \"efficient-adam\"",
    "name = \"efficient-adam\"\ncodec_up = \"topk0.2\"\ncodec_down = \"uniform3\"",
    "name = \"efficient-adam\"\ncodec = \"f32\"",
    "name = \"efficient-adam\"\ncodec_up = \"f16\"\ncodec_down = \"bf16\"",
    "name = \"lion\"\ncodec_down = \"bf16\"",
    "name = \"birder\"",
];

/// A message: as it should be but for its payload, with a few other bytes, of nobody, or of no structure.
pub fn message(input: &mut Input, expected: &Header, length: usize) -> Vec<u8> {
    let of = |header: Header, payload: Vec<u8>| [&header.to_bytes()[..], &payload].concat();
    match input.byte() % 8 {
        0 => input.part().to_vec(),
        1 => of(Header { contributions: 0, ..*expected }, Vec::new()),
        2 | 3 => {
            let mut message = of(*expected, input.padded(length - HEADER_LEN));
            let at = usize::from(input.byte()) % message.len();
            message[at] ^= input.byte();
            message
        }
        4 => of(Header { contributions: u32::from(input.byte()), ..*expected }, input.part().to_vec()),
        _ => of(*expected, input.padded(length - HEADER_LEN)),
    }
}

/// Messages that pass an owner's check have a mean of finite values, whoever sent them.
pub fn mean(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    Served::one(input.byte(), |served| {
        for round in 0..1 + input.byte() % 3 {
            mean_of_a_round(&mut input, served, u64::from(round));
        }
    });
}

fn mean_of_a_round(input: &mut Input, served: &mut Served, step: u64) {
    let expected = served.expected(input.flag(), step);
    let bytes = expected.to_bytes();
    let owner = &mut served.owner;
    let length = owner.length(&bytes).expect("a round of ours");
    let came = (0..input.byte() % 8).map(|_| message(input, &expected, length)).collect::<Vec<_>>();
    let checked = |(worker, message): (usize, &Vec<u8>)| owner.check(&bytes, message, worker).map_err(is_short).is_ok();
    let taken = came.iter().enumerate().filter(|one| checked(*one)).map(|(_, message)| message.clone());
    let taken = taken.collect::<Vec<_>>();
    let mean = owner.mean(&bytes, &taken, |i| i).expect("what the check let through");
    let (header, payload) = Header::read(&mean, 0).expect("a message of ours");
    assert_eq!(header.contributions as usize, taken.iter().filter(|message| message.len() > HEADER_LEN).count());
    if header.contributions > 0 {
        let mut values = [7.0; VALUES];
        header.codec.codec().decode_blocks(BLOCK, payload, &mut values).expect("a mean of ours");
        assert!(values.iter().all(|value| value.is_finite()));
    }
    owner.keep(&bytes).expect("a round of ours");
    assert!(owner.residual().iter().all(|e| e.is_finite()), "E is not finite");
}
