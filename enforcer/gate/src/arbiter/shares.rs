//! How GPU time divides between the claims that want it now.

use super::Claim;

/// Shares of the claims that want GPU time, and the rest if all of them are at their limits. They sum to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    pub claims: Vec<f64>,
    pub nobody: f64,
}

/// Every claim gets its request. The rest is divided up to the limits, lowest tier first, in proportion to request
/// times weight.
pub(super) fn divide(claims: &[&Claim<'_>]) -> Shares {
    let permille = |value: u32| f64::from(value.min(1000)) / 1000.0;
    let limit = |i: usize| permille(claims[i].limit_permille);
    let mut shares: Vec<f64> = (0..claims.len())
        .map(|i| permille(claims[i].request_permille.max(1)).min(limit(i)))
        .collect();
    let promised: f64 = shares.iter().sum();
    if promised > 1.0 {
        for share in &mut shares {
            *share /= promised;
        }
    }
    let mut left = 1.0 - shares.iter().sum::<f64>();
    let mut tier = claims.iter().map(|c| c.tier).min();
    while let Some(this) = tier {
        // Each round a claim reaches its limit, or all is divided.
        for _ in 0..=claims.len() {
            let may = |i: &usize, shares: &[f64]| {
                claims[*i].tier == this && shares[*i] + 1e-9 < limit(*i)
            };
            let weight = |i: usize| {
                f64::from(claims[i].request_permille.max(1))
                    * f64::from(claims[i].weight_milli.max(1))
            };
            let open = (0..claims.len()).filter(|i| may(i, &shares));
            let total: f64 = open.map(weight).sum();
            if left < 1e-9 || total == 0.0 {
                break;
            }
            let give = left;
            for i in 0..claims.len() {
                if may(&i, &shares) {
                    let more = (give * weight(i) / total).min(limit(i) - shares[i]);
                    shares[i] += more;
                    left -= more;
                }
            }
        }
        let after = claims.iter().map(|c| c.tier).filter(|next| *next > this);
        tier = after.min();
    }
    Shares {
        claims: shares,
        nobody: if left < 1e-3 { 0.0 } else { left },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(request: u32, limit: u32, tier: u8, weight: u32) -> Claim<'static> {
        Claim {
            id: 0,
            request_permille: request,
            limit_permille: limit,
            tier,
            weight_milli: weight,
            is_gated: true,
            is_spread: false,
            elsewhere: &[],
            elsewhere_ns: None,
            word: crate::Word::default(),
            processes: &[],
        }
    }

    #[test]
    fn requests_then_the_rest() {
        // (request, limit, tier, weight) each -> shares in permille, and the rest
        #[allow(clippy::type_complexity, reason = "a table")]
        let table: &[(&[(u32, u32, u8, u32)], &[i32], i32)] = &[
            (
                &[(100, 1000, 0, 1000), (900, 1000, 0, 1000)],
                &[100, 900],
                0,
            ),
            (
                &[(200, 1000, 0, 1000), (300, 1000, 0, 1000)],
                &[400, 600],
                0,
            ),
            (&[(200, 300, 0, 1000), (300, 1000, 0, 1000)], &[300, 700], 0),
            (
                &[(200, 300, 0, 1000), (300, 400, 0, 1000)],
                &[300, 400],
                300,
            ),
            (&[(500, 800, 0, 1000)], &[800], 200),
            (&[(0, 1000, 0, 1000), (999, 1000, 0, 1000)], &[1, 999], 0),
            // Twice the weight, twice the share of the rest.
            (
                &[(200, 1000, 0, 2000), (200, 1000, 0, 1000)],
                &[600, 400],
                0,
            ),
            // Strict: the first tier takes the whole rest.
            (
                &[(200, 1000, 1, 1000), (200, 1000, 0, 1000)],
                &[200, 800],
                0,
            ),
            (&[(200, 1000, 1, 1000), (200, 500, 0, 1000)], &[500, 500], 0),
            // More promised than available (the ledger prevents it): in proportion.
            (
                &[(800, 1000, 0, 1000), (800, 1000, 0, 1000)],
                &[500, 500],
                0,
            ),
        ];
        for (claims, expect, nobody) in table {
            let claims: Vec<Claim<'_>> = claims
                .iter()
                .map(|&(r, l, t, w)| claim(r, l, t, w))
                .collect();
            let shares = divide(&claims.iter().collect::<Vec<_>>());
            let round = |x: f64| (x * 1000.0).round() as i32;
            let got: Vec<i32> = shares.claims.iter().map(|s| round(*s)).collect();
            assert_eq!(
                (&got[..], round(shares.nobody)),
                (*expect, *nobody),
                "{claims:?}"
            );
        }
    }
}
