//! Compares the search with brute force.

use proptest::prelude::*;

use super::*;

fn need(sm: u32) -> Need {
    Need {
        sm,
        mem: u64::from(sm),
    }
}

fn item(sm: u32, at: &[usize]) -> Item {
    Item {
        need: vec![need(sm)],
        parts: u32::try_from(at.len()).unwrap().max(1),
        mask: Mask::MAX,
        at: at.to_vec(),
        move_cost: Some(1),
        drop_cost: None,
    }
}

fn board(gpus: usize, items: Vec<Item>) -> Board {
    let mut free = vec![need(1000); gpus];
    for item in &items {
        for &g in &item.at {
            free[g] = free[g].less(item.need[0]);
        }
    }
    Board {
        kind: vec![0; gpus],
        model: vec![0; gpus],
        free,
        items,
    }
}

#[test]
fn the_cheapest_are_suspended_and_only_as_many_as_needed() {
    let mut items: Vec<Item> = (0..4).map(|g| item(1000, &[g])).collect();
    for (i, item) in items.iter_mut().enumerate() {
        item.move_cost = None;
        item.drop_cost = Some(10 - i as u64);
    }
    items[3].drop_cost = None;
    let b = board(4, items);
    let mut two = item(1000, &[]);
    two.parts = 2;
    let budget = Budget {
        drops: 3,
        ..Budget::default()
    };
    let Answer::Fits(fit) = b.place(&two, Prefer::Pack, |_| 0, budget) else {
        panic!("it fits")
    };
    assert_eq!(fit.drops, [1, 2]);
    assert_eq!(fit.at, [1, 2]);
    two.parts = 4;
    assert_eq!(b.place(&two, Prefer::Pack, |_| 0, budget), Answer::No);
}

#[test]
fn spread_takes_the_emptiest_pack_the_fullest_and_models_stay_together() {
    let mut b = board(3, vec![item(500, &[0])]);
    let new = item(250, &[]);
    assert_eq!(b.direct(&new, Prefer::Pack, |_| 0), Some(vec![0]));
    assert_eq!(b.direct(&new, Prefer::Spread, |_| 0), Some(vec![1]));
    assert_eq!(
        b.direct(&new, Prefer::Pack, |g| u64::from(g == 0)),
        Some(vec![1])
    );
    b.kind = vec![0, 1, 0];
    b.model = vec![0, 1, 0];
    let mut pair = item(500, &[]);
    pair.need = vec![need(500), need(500)];
    pair.parts = 2;
    for item in &mut b.items {
        item.need = vec![need(500), need(500)];
    }
    assert_eq!(b.direct(&pair, Prefer::Spread, |_| 0), Some(vec![0, 2]));
}

/// The fewest suspensions, then the fewest moves, by trying everything.
fn brute(board: &Board, new: &Item) -> Option<(usize, usize)> {
    fn go(
        board: &Board,
        new: &Item,
        next: usize,
        free: &mut Vec<Need>,
        so_far: (usize, usize),
        best: &mut Option<(usize, usize)>,
    ) {
        if best.is_some_and(|b| so_far >= b) {
            return;
        }
        if next > board.items.len() {
            *best = Some(so_far);
            return;
        }
        let item = board.items.get(next).unwrap_or(new);
        let existing = next < board.items.len();
        if existing && !item.can_leave() {
            return go(board, new, next + 1, free, so_far, best);
        }
        for set in 0u32..1 << free.len() {
            let gpus: Vec<usize> = (0..free.len()).filter(|g| set & (1 << g) != 0).collect();
            let stays = existing && gpus == item.at;
            if Mask::from(set) & !item.mask != 0
                || gpus.len() != item.parts as usize
                || (existing && !stays && item.move_cost.is_none())
                || gpus.iter().any(|&g| board.model[g] != board.model[gpus[0]])
                || gpus
                    .iter()
                    .any(|&g| !item.need[board.kind[g]].fits(free[g]))
            {
                continue;
            }
            for &g in &gpus {
                free[g] = free[g].less(item.need[board.kind[g]]);
            }
            let moved = usize::from(existing && !stays);
            go(
                board,
                new,
                next + 1,
                free,
                (so_far.0, so_far.1 + moved),
                best,
            );
            for &g in &gpus {
                free[g] = free[g].plus(item.need[board.kind[g]]);
            }
        }
        if existing && item.drop_cost.is_some() {
            go(board, new, next + 1, free, (so_far.0 + 1, so_far.1), best);
        }
    }
    let mut free = board.free.clone();
    for item in board.items.iter().filter(|i| i.can_leave()) {
        for &g in &item.at {
            free[g] = free[g].plus(item.need[board.kind[g]]);
        }
    }
    let mut best = None;
    go(board, new, 0, &mut free, (0, 0), &mut best);
    best
}

#[derive(Clone, Debug)]
struct Asked {
    sm: u32,
    mem: u64,
    parts: u32,
    mask: Mask,
    movable: bool,
    droppable: bool,
}

fn asked() -> impl Strategy<Value = Asked> {
    (
        prop::sample::select(vec![100u32, 200, 250, 300, 400, 500, 600, 700, 1000]),
        prop::sample::select(vec![100u64, 250, 300, 500, 600, 1000]),
        prop::sample::select(vec![1u32, 1, 1, 1, 2]),
        prop::sample::select(vec![Mask::MAX, Mask::MAX, Mask::MAX, 0b0011, 0b1110]),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(sm, mem, parts, mask, movable, droppable)| Asked {
            sm,
            mem,
            parts,
            mask,
            movable,
            droppable,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn equal_to_brute_force_up_to_4_gpus_and_8_claims(
        gpus in 1usize..=4,
        two_kinds in any::<bool>(),
        claims in prop::collection::vec((asked(), 0usize..4), 0..7),
        new in asked(),
    ) {
        let kind: Vec<usize> = (0..gpus).map(|g| usize::from(two_kinds && g % 2 == 1)).collect();
        let mut b = Board { model: kind.clone(), kind, free: vec![Need { sm: 1000, mem: 1000 }; gpus], items: Vec::new() };
        let make = |a: &Asked| Item {
            // GPUs of the second kind have twice the memory.
            need: vec![Need { sm: a.sm, mem: a.mem }, Need { sm: a.sm, mem: a.mem / 2 }],
            parts: a.parts,
            mask: a.mask,
            at: Vec::new(),
            move_cost: a.movable.then_some(1),
            drop_cost: a.droppable.then_some(1),
        };
        for (a, from) in &claims {
            let mut item = make(a);
            // First fit from a given GPU on, so that boards are not always well packed.
            let order: Vec<usize> = (0..gpus).map(|g| (g + from) % gpus).collect();
            let fits: Vec<usize> = order
                .into_iter()
                .filter(|&g| allowed(&item, g) && item.need[b.kind[g]].fits(b.free[g]))
                .collect();
            let Some(mut at) = of_one_model(&fits, &b.model, item.parts as usize) else { continue };
            at.sort_unstable();
            for &g in &at {
                b.free[g] = b.free[g].less(item.need[b.kind[g]]);
            }
            item.at = at;
            b.items.push(item);
        }
        let new = make(&new);
        let wide = Budget { steps: 1_000_000, moves: 8, least: 0, drops: 8 };
        let truth = brute(&b, &new);
        match b.place(&new, Prefer::Pack, |_| 0, wide) {
            Answer::Fits(fit) => {
                let (drops, moves) = truth.expect("brute force finds it too");
                prop_assert!(fit.optimal);
                prop_assert_eq!((fit.drops.len(), fit.moves.len()), (drops, moves));
                // The packing must be valid.
                let mut free = b.free.clone();
                for (i, item) in b.items.iter().enumerate() {
                    let moved = fit.moves.iter().find(|(m, _)| *m == i);
                    if moved.is_some() || fit.drops.contains(&i) {
                        for &g in &item.at {
                            free[g] = free[g].plus(item.need[b.kind[g]]);
                        }
                    }
                }
                let moved = fit.moves.iter().map(|(i, at)| (&b.items[*i], at));
                for (item, at) in moved.chain([(&new, &fit.at)]) {
                    prop_assert_eq!(at.len(), item.parts as usize);
                    for &g in at {
                        prop_assert!(allowed(item, g) && item.need[b.kind[g]].fits(free[g]));
                        free[g] = free[g].less(item.need[b.kind[g]]);
                    }
                }
            }
            Answer::No => prop_assert_eq!(truth, None),
            Answer::Unknown => prop_assert!(false, "the budget is wide"),
        }
    }
}

#[test]
fn room_that_takes_suspensions_and_moves_is_found_beyond_the_search() {
    let on = |g: usize, sizes: &[u32]| sizes.iter().map(|sm| item(*sm, &[g])).collect::<Vec<_>>();
    let whole = (0..5).flat_map(|g| on(g, &[810]));
    let mut items: Vec<Item> = whole
        .chain((5..8).flat_map(|g| on(g, &[320, 370, 270])))
        .collect();
    for on_loan in items.iter_mut().filter(|i| i.need[0].sm == 270) {
        on_loan.drop_cost = Some(10);
    }
    let b = board(8, items);
    let budget = Budget {
        least: 1,
        drops: 3,
        ..Budget::default()
    };
    let new = item(470, &[]);
    assert_eq!(b.rearrange(&new, budget).0, Answer::Unknown);
    let fit = b
        .clear(&new, budget.steps)
        .expect("470 and 370, twice 370, three times 320");
    let mut free = vec![1000i64; 8];
    for (i, item) in b
        .items
        .iter()
        .enumerate()
        .filter(|(i, _)| !fit.drops.contains(i))
    {
        let to = fit.moves.iter().find(|(moved, _)| *moved == i);
        let at = to.map_or(&item.at, |(_, to)| to);
        at.iter()
            .for_each(|g| free[*g] -= i64::from(item.need[0].sm));
    }
    fit.at.iter().for_each(|g| free[*g] -= 470);
    assert!(free.iter().all(|f| *f >= 0), "{fit:?} leaves {free:?}");
    // One more of 470 has no place, which needs no search.
    let two = Item { parts: 2, ..new };
    assert_eq!(b.rearrange(&two, budget), (Answer::No, 0));
}
