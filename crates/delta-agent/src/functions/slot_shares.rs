//! How the slots of an agent are shared among its runner pools: each has room of its own, so that a
//! burst for one does not hold up another. Decided once, said at the registration.

use super::settings::RunnerSettings;

/// Slots of each pool, in their order; what is left of `slots` is for other work. Nothing where
/// there are too few to give every pool one: then any slot takes any function.
pub fn share(settings: &RunnerSettings, slots: u32, mixed: bool) -> Option<Vec<u32>> {
    let rooms: Vec<u32> = settings.pools.iter().map(|pool| pool.room()).collect();
    let wanted: u32 = rooms.iter().sum();
    let beside = if mixed {
        slots.saturating_sub(wanted).max(1)
    } else {
        0
    };
    let total = slots.checked_sub(beside)?;
    let count = u32::try_from(rooms.len()).ok()?;
    let spare = total.checked_sub(count).filter(|_| count > 0)?;
    // Every pool has one; the rest goes by room, and what does not divide to whom most is due.
    let weights: Vec<u64> = rooms.iter().map(|room| u64::from(room - 1)).collect();
    let sum = weights.iter().sum::<u64>().max(1);
    let part = |weight: &u64| u32::try_from(u64::from(spare) * weight / sum).unwrap_or(0);
    let mut shares: Vec<u32> = weights.iter().map(|it| 1 + part(it)).collect();
    let given: u32 = shares.iter().sum();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(u64::from(spare) * weights[*at] % sum));
    for n in order.iter().cycle().take((total - given) as usize) {
        shares[*n] += 1;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn pools(rooms: &[u32]) -> RunnerSettings {
        let pool = |(n, room): (usize, &u32)| {
            format!(
                "  p{n}:\n    address: 127.0.0.1:{}\n    in_flight: {room}\n",
                9000 + n
            )
        };
        let text: String = rooms.iter().enumerate().map(pool).collect();
        let text = format!("pools:\n{text}");
        RunnerSettings::parse("runners.yaml", &text, Path::new("/")).expect("pools")
    }

    #[test]
    fn each_pool_has_its_room() {
        assert_eq!(share(&pools(&[8, 64]), 72, false), Some(vec![8, 64]));
        assert_eq!(share(&pools(&[1, 1]), 2, false), Some(vec![1, 1]));
        // Two more slots, for steps.
        assert_eq!(share(&pools(&[8, 64]), 74, true), Some(vec![8, 64]));
    }

    #[test]
    fn fewer_or_more_slots_are_shared_by_room_and_none_is_left_out() {
        let shares = |rooms: &[u32], slots, mixed| {
            let shares = share(&pools(rooms), slots, mixed).expect("shares");
            let beside = if mixed { 1 } else { 0 };
            assert_eq!(shares.iter().sum::<u32>(), slots - beside, "{shares:?}");
            shares
        };
        assert_eq!(shares(&[8, 64], 4, false), [1, 3]);
        assert_eq!(shares(&[1, 64, 64], 5, false), [1, 2, 2]);
        assert_eq!(shares(&[1, 1], 7, false), [4, 3]);
        assert_eq!(shares(&[8, 8], 5, true), [2, 2]);
        for slots in 2..300 {
            assert!(shares(&[3, 50], slots, false).iter().all(|it| *it > 0));
        }
        assert_eq!(share(&pools(&[8, 8, 8]), 2, false), None);
        assert_eq!(share(&pools(&[8, 8]), 2, true), None);
    }
}
