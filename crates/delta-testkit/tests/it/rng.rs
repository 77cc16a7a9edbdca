//! The generator: the same seed gives the same faults.

use std::time::Duration;

use delta_testkit::rng::Rng;

#[test]
fn the_same_seed_draws_the_same_numbers() {
    let draw = |seed| {
        let mut rng = Rng::new(seed);
        (0..100).map(|_| rng.next_u64()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn parts_of_one_seed_differ_and_repeat() {
    let first = |part| Rng::part(42, part).next_u64();
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    assert_ne!(first(1), Rng::part(43, 1).next_u64());
}

#[test]
fn draws_stay_in_their_range() {
    let mut rng = Rng::new(1);
    for _ in 0..10_000 {
        assert!(rng.below(3) < 3);
        assert!((5..9).contains(&rng.between(5..9)));
        let pause = rng.duration(Duration::from_millis(1)..Duration::from_millis(2));
        assert!((1_000..2_000).contains(&pause.as_micros()));
    }
    assert_eq!(rng.below(0), 0);
    assert_eq!(rng.between(4..4), 4);
}

#[test]
fn chances_come_true_about_as_often_as_they_say() {
    let mut rng = Rng::new(2);
    let hits = (0..100_000).filter(|_| rng.chance(0.25)).count();
    assert!((24_000..26_000).contains(&hits), "{hits} of 100,000");
    assert!((0..1_000).all(|_| !rng.chance(0.0)));
    assert!((0..1_000).all(|_| rng.chance(1.0)));
}

#[test]
fn a_shuffle_keeps_every_item() {
    let mut items: Vec<u32> = (0..50).collect();
    Rng::new(3).shuffle(&mut items);
    assert_ne!(items, (0..50).collect::<Vec<_>>());
    items.sort();
    assert_eq!(items, (0..50).collect::<Vec<_>>());
}
