//! Rounds and seats, with a clock that the tests turn.

use super::*;

const RULES: Rules =
    Rules { quorum: 1, workers: 2, deadline: Duration::from_secs(10), max_members: 4, per_identity: 5 };

fn table(rules: Rules, round: u64) -> (Table, Instant) {
    let now = Instant::now();
    let mut table = Table::new(rules, Roster::default(), |_| 0, &[], counter(100), now);
    table.open(round, Some(Arc::from(&b"header"[..])));
    (table, now)
}

/// In place of chance.
fn counter(mut last: u64) -> impl FnMut() -> u64 + Send {
    move || {
        last += 1;
        last
    }
}

fn after(now: Instant, seconds: u64) -> Instant {
    now + Duration::from_secs(seconds)
}

/// Joins, follows, works on the round.
fn sit(table: &mut Table, name: &str, now: Instant) -> (u32, u64) {
    let (slot, session) = table.join(name, "here", now).unwrap();
    table.follows(slot, session).unwrap();
    table.ready(slot, session, table.round()).unwrap();
    (slot, session)
}

fn send(table: &mut Table, (slot, session): (u32, u64), now: Instant) {
    let round = table.round();
    assert!(matches!(table.arrive(slot, session, round, vec![slot as u8], None, now), Ok(Verdict::Open(_))));
}

#[test]
fn a_round_waits_for_all_who_work_on_it_until_the_deadline() {
    let (mut table, now) = table(RULES, 3);
    let [a, b, _c] = ["a", "b", "c"].map(|name| sit(&mut table, name, now));
    assert_eq!(table.decide(now), Decision::Wait);
    send(&mut table, a, after(now, 1));
    assert_eq!(table.decide(after(now, 2)), Decision::WaitUntil(after(now, 11)));
    send(&mut table, b, after(now, 2));
    assert_eq!(table.decide(after(now, 10)), Decision::WaitUntil(after(now, 11)));
    assert_eq!(table.decide(after(now, 11)), Decision::Close);
    let closed = table.close();
    assert_eq!(closed.0.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(table.may_send(2, _c.1, 3), Ok(Verdict::Late), "while it is made");
    table.closed([0, 1].into_iter());
    table.open(4, Some(Arc::from(&b"header"[..])));
    // c is not waited for until it says that it has caught up.
    send(&mut table, a, now);
    send(&mut table, b, now);
    assert_eq!(table.decide(now), Decision::Close);
    table.ready(2, _c.1, 3).unwrap();
    assert_eq!(table.decide(now), Decision::Close);
    table.ready(2, _c.1, 4).unwrap();
    assert!(matches!(table.decide(now), Decision::WaitUntil(_)));
    assert_eq!(table.seats()[2].left_out, 1);
}

#[test]
fn the_first_round_waits_for_as_many_as_the_run_is_made_for() {
    let (mut table, now) = table(RULES, 0);
    let a = sit(&mut table, "a", now);
    send(&mut table, a, now);
    assert_eq!(table.decide(now), Decision::WaitUntil(after(now, 10)));
    let b = sit(&mut table, "b", now);
    send(&mut table, b, now);
    assert_eq!(table.decide(now), Decision::Close);
}

#[test]
fn without_a_quorum_there_is_no_round() {
    let (mut table, now) = table(Rules { quorum: 2, ..RULES }, 3);
    let a = sit(&mut table, "a", now);
    send(&mut table, a, now);
    assert_eq!(table.decide(after(now, 1000)), Decision::Wait);
    let b = sit(&mut table, "b", now);
    send(&mut table, b, after(now, 1000));
    assert_eq!(table.decide(after(now, 1000)), Decision::Close);
}

#[test]
fn who_loses_the_connection_is_waited_for_as_long_as_the_deadline() {
    let (mut table, now) = table(RULES, 3);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    table.lost(b.0, b.1, now);
    send(&mut table, a, after(now, 4));
    assert_eq!(table.decide(after(now, 5)), Decision::WaitUntil(after(now, 10)));
    assert_eq!(table.decide(after(now, 10)), Decision::Close);
    // It comes back in time.
    let b = table.join("b", "here", after(now, 6)).unwrap();
    assert_eq!(b.0, 1);
    table.follows(b.0, b.1).unwrap();
    assert_eq!(table.decide(after(now, 10)), Decision::WaitUntil(after(now, 14)));
    table.leaves(b.0, b.1).unwrap();
    assert_eq!(table.decide(after(now, 10)), Decision::Close);
}

#[test]
fn after_a_restart_the_last_round_s_workers_are_waited_for() {
    let now = Instant::now();
    let names = ["a", "b", "c"].map(str::to_owned).to_vec();
    let mut table = Table::new(RULES, Roster { seats: names, ..Roster::default() }, |_| 0, &[0, 2], counter(100), now);
    table.open(9, Some(Arc::from(&b"header"[..])));
    let a = table.join("a", "here", now).unwrap();
    table.follows(a.0, a.1).unwrap();
    send(&mut table, a, after(now, 1));
    assert_eq!(table.decide(after(now, 1)), Decision::WaitUntil(after(now, 10)));
    let c = table.join("c", "here", now).unwrap();
    table.follows(c.0, c.1).unwrap();
    send(&mut table, c, after(now, 1));
    assert_eq!(table.decide(after(now, 1)), Decision::Close);
}

#[test]
fn a_message_goes_with_the_one_who_sent_it() {
    let (mut table, now) = table(RULES, 3);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    send(&mut table, a, now);
    let a = sit(&mut table, "a", after(now, 9)); // another life of a, with another message
    assert_eq!(table.arrived(), 0);
    table.arrive(a.0, a.1, 3, vec![77], None, after(now, 9)).unwrap();
    assert_eq!(table.decide(after(now, 10)), Decision::WaitUntil(after(now, 19)), "it is the first");
    send(&mut table, b, after(now, 10));
    assert_eq!(table.close().0.into_values().collect::<Vec<_>>(), [vec![77], vec![1]]);
    // Whether its last message counts must be known before it may come back.
    assert_eq!(table.join("a", "here", now), Err(Refusal::Making));
    table.join("c", "here", now).unwrap();
    table.closed([0, 1].into_iter());
    table.open(4, Some(Arc::from(&b"header"[..])));
    table.join("a", "here", now).unwrap();
}

#[test]
fn who_may_not_sit_or_speak_is_told_why() {
    let (mut table, now) = table(RULES, 3);
    let a = sit(&mut table, "a", now);
    for name in ["", "with space", "ü", &"x".repeat(65), "a/b"] {
        assert_eq!(table.join(name, "here", now), Err(Refusal::Name));
    }
    ["b", "c", "d"].iter().for_each(|name| _ = table.join(name, "here", now).unwrap());
    assert_eq!(table.join("e", "here", now), Err(Refusal::Full(4)));
    let again = table.join("a", "here", now).unwrap();
    assert_eq!(table.check(a.0, a.1), Err(Refusal::Replaced));
    assert_eq!(table.check(77, a.1), Err(Refusal::Replaced));
    assert_eq!(table.check(a.0, a.1 + (1 << 32)), Err(Refusal::Restarted), "of a server before this one, or made up");
    table.lost(a.0, a.1, now); // of the one before: nothing
    assert_eq!(table.may_send(again.0, again.1, 4), Err(Refusal::Early(4, 3)));
    assert_eq!(table.may_send(again.0, again.1, 2), Ok(Verdict::Late));
    send(&mut table, again, now);
    send(&mut table, again, now); // the same once more
    let other = table.arrive(again.0, again.1, 3, vec![9], None, now);
    assert_eq!(other, Err(Refusal::Another(3)));
    assert_eq!(table.arrived(), 1);
    let upload = table.begin_upload(again.0, again.1).unwrap();
    table.check_upload(again.0, again.1, upload).unwrap();
    table.begin_upload(again.0, again.1).unwrap();
    assert_eq!(table.check_upload(again.0, again.1, upload), Err(Refusal::Superseded));
}

#[test]
fn a_seat_that_its_member_has_left_is_given_again() {
    let (mut table, now) = table(RULES, 7);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    send(&mut table, a, now);
    table.close();
    table.closed([a.0].into_iter());
    table.open(8, Some(Arc::from(&b"header"[..])));
    // b is killed: its seat stays its own for as long as anyone waits.
    table.lost(b.0, b.1, now);
    assert_eq!(table.join("c", "here", after(now, 1)).unwrap().0, 2);
    let changes = table.changes();
    assert_eq!(
        table.join("d", "here", after(now, 11)).unwrap().0,
        b.0,
        "then another has it, and its share of the data"
    );
    assert!(table.changes() > changes);
    assert!(table.roster().gone.is_empty(), "b was never counted, and has nothing to tell twice");
    // a says that it leaves; whoever has its seat then, it is remembered that round 7 counted it.
    table.leaves(a.0, a.1).unwrap();
    table.lost(a.0, a.1, now);
    let e = table.join("e", "here", after(now, 1)).unwrap();
    assert_eq!((e.0, table.counted(e.0)), (a.0, 0));
    let again = table.join("a", "here", after(now, 2)).unwrap();
    assert_eq!((again.0, table.counted(again.0)), (3, 8));
    let restarted = Table::new(RULES, table.roster(), |_| 0, &[], counter(1000), now);
    assert_eq!(restarted.counted(again.0), 8, "also by the server that comes after");
}

#[test]
fn the_table_is_empty_when_nobody_is_expected_back() {
    let (mut table, now) = table(RULES, 3);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    assert!(!table.is_empty(now));
    for (slot, session) in [a, b] {
        table.lost(slot, session, now);
    }
    table.leaves(a.0, a.1).unwrap();
    assert!(!table.is_empty(after(now, 9)), "b was cut off");
    assert!(table.is_empty(after(now, 11)));
}

/// It says that it works on the round, every time, and never sends.
#[test]
fn who_never_sends_is_not_waited_for_until_it_does() {
    let (mut table, now) = table(RULES, 3);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    for round in 3..3 + u64::from(MISSES) {
        table.ready(b.0, b.1, round).unwrap();
        send(&mut table, a, now);
        assert_eq!(table.decide(now), Decision::WaitUntil(after(now, 10)), "round {round}");
        next(&mut table, &[a.0]);
    }
    // Also as another life of the same name.
    let b = sit(&mut table, "b", now);
    for _ in 0..5 {
        table.ready(b.0, b.1, table.round()).unwrap();
        send(&mut table, a, now);
        assert_eq!(table.decide(now), Decision::Close);
        next(&mut table, &[a.0]);
    }
    // It delivers in time, and is waited for again.
    send(&mut table, b, now);
    send(&mut table, a, now);
    next(&mut table, &[a.0, b.0]);
    send(&mut table, a, now);
    assert_eq!(table.decide(now), Decision::WaitUntil(after(now, 10)));
}

/// Or a slow worker would be too late for ever once the others go on without it.
#[test]
fn who_sends_too_late_is_waited_for_again() {
    let (mut table, now) = table(RULES, 3);
    let [a, b] = ["a", "b"].map(|name| sit(&mut table, name, now));
    for round in 3..3 + u64::from(MISSES) {
        table.ready(b.0, b.1, round).unwrap();
        send(&mut table, a, now);
        next(&mut table, &[a.0]);
    }
    // A piece that names the round is not a message: who sends nothing else would keep everyone at the deadline.
    for _ in 0..3 {
        let late = table.round() - 1;
        assert!(matches!(table.may_send(b.0, b.1, late), Ok(Verdict::Past(expected)) if *expected == *b"header"));
        assert_eq!(table.may_send(b.0, b.1, late - 1), Ok(Verdict::Late));
        table.ready(b.0, b.1, table.round()).unwrap();
        send(&mut table, a, now);
        assert_eq!(table.decide(now), Decision::Close);
        next(&mut table, &[a.0]);
    }
    // A whole one that was checked is.
    let late = table.round() - 1;
    assert_eq!(table.arrive(b.0, b.1, late, vec![7], None, now), Ok(Verdict::Late));
    assert_eq!(table.may_send(b.0, b.1, late), Ok(Verdict::Late), "and there is nothing more to prove");
    table.ready(b.0, b.1, table.round()).unwrap();
    send(&mut table, a, now);
    assert_eq!(table.decide(now), Decision::WaitUntil(after(now, 10)));
}

fn next(table: &mut Table, counted: &[u32]) {
    let round = table.round();
    table.close();
    table.closed(counted.iter().copied());
    table.open(round + 1, Some(Arc::from(&b"header"[..])));
}

#[test]
fn one_identity_has_so_many_seats() {
    let (mut table, now) = table(Rules { per_identity: 2, ..RULES }, 3);
    let (slot, session) = table.join("a", "here", now).unwrap();
    table.join("b", "here", now).unwrap();
    assert_eq!(table.join("c", "here", now), Err(Refusal::TooMany(2)));
    table.join("a", "here", now).unwrap(); // its own once more
    assert_eq!(table.check(slot, session), Err(Refusal::Replaced));
    table.join("c", "there", now).unwrap();
    // Whoever has gone has no seat.
    assert_eq!(table.join("d", "here", after(now, 11)).unwrap().0, 0);
}

/// The log names seats. What counted one before it was given away is not what counted whoever has it now, also when the server has
/// come back.
#[test]
fn a_seat_that_another_had_was_not_counted_for_its_member() {
    let start = Instant::now();
    let mut table = Table::new(RULES, Roster::default(), |_| 0, &[], counter(0), start);
    table.open(0, Some(Arc::from(&b"0"[..])));
    let seated = (0..RULES.workers).map(|worker| table.join(&format!("worker-{worker}"), "", start).unwrap());
    let seated = seated.collect::<Vec<_>>();
    table.closed([seated[0].0].into_iter());
    table.open(7, Some(Arc::from(&b"7"[..])));
    table.leaves(seated[0].0, seated[0].1).unwrap();
    let (slot, _) = table.join("later", "", start).unwrap();
    assert_eq!((slot, table.counted(slot)), (seated[0].0, 0));
    let back = |counted| Table::new(RULES, table.roster(), move |_| counted, &[], counter(0), start).counted(slot);
    assert_eq!((back(7), back(8)), (0, 8));
    let text = serde_json::to_string(&table.roster()).unwrap();
    assert_eq!(serde_json::from_str::<Roster>(&text).unwrap(), table.roster());
}
