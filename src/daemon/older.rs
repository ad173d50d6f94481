//! JSON lines of members of version 0.1: a program keeps the library that it started with.

use gshare_abi::wire::{Answer, Register, Request, Want};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Line {
    Register {
        abi: u32,
        pid: u32,
        hint: Option<u64>,
        #[serde(default)]
        looks: bool,
    },
    Want {
        hint: Option<u64>,
    },
}

/// A member's request in this line; `None` if it is a client's, or the reason why it cannot be read.
pub(super) fn request(line: &str) -> Option<Result<Request, String>> {
    // Exactly as those libraries write it, so that clients' lines need no parsing here.
    let begins = |op: &str| line.starts_with(&format!("{{\"op\":\"{op}\""));
    if !begins("register") && !begins("want") {
        return None;
    }
    let request = serde_json::from_str(line).map(|line| match line {
        Line::Register {
            abi,
            pid,
            hint,
            looks,
        } => Request::Register(Register {
            abi,
            pid,
            hint,
            looks,
        }),
        Line::Want { hint } => Request::Want(Want { hint }),
    });
    Some(request.map_err(|error| error.to_string()))
}

/// The answer as such a line.
pub(super) fn line(answer: &Answer) -> String {
    let value = match answer {
        Answer::Member {
            claim,
            name,
            gpus,
            env,
        } => {
            let seat = |seat: &gshare_abi::wire::Seat| json!({"uuid": seat.uuid.to_string(), "slot": seat.slot, "generation": seat.generation});
            let gpus: Vec<_> = gpus.iter().map(seat).collect();
            json!({"ok": true, "claim": claim, "name": name, "gpus": gpus, "env": env})
        }
        Answer::Wait {
            claim,
            position,
            reason,
        } => json!({"wait": position, "claim": claim, "reason": reason}),
        Answer::Later { claim, gpus } => json!({"later": gpus, "claim": claim}),
        Answer::Wanted { message } => json!({"ok": true, "message": message}),
        Answer::Refused { code, message } => {
            json!({"ok": false, "code": code, "message": message})
        }
    };
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use gshare_abi::wire::Seat;

    use super::*;

    /// Recorded from a library of 0.1.0.
    #[test]
    fn what_0_1_says_is_understood() {
        let register = r#"{"op":"register","abi":3,"pid":4711,"hint":null,"looks":false}"#;
        let expected = Request::Register(Register {
            abi: 3,
            pid: 4711,
            hint: None,
            looks: false,
        });
        assert_eq!(request(register), Some(Ok(expected)));
        let want = Request::Want(Want { hint: Some(7) });
        assert_eq!(request(r#"{"op":"want","hint":7}"#), Some(Ok(want)));
        assert_eq!(request(r#"{"op":"ps"}"#), None);
        let lacks = request(r#"{"op":"register","abi":2}"#);
        assert!(
            lacks
                .clone()
                .is_some_and(|r| r.is_err_and(|e| e.contains("pid"))),
            "{lacks:?}"
        );
    }

    #[test]
    fn and_it_is_answered_in_its_own_words() {
        let seat = Seat {
            uuid: gshare_abi::GpuUuid([7; 16]),
            slot: 5,
            generation: 9,
        };
        let member = Answer::Member {
            claim: 3,
            name: "c3".to_owned(),
            gpus: vec![seat],
            env: vec![("A".to_owned(), "/x".to_owned())],
        };
        let refused = Answer::Refused {
            code: "full".to_owned(),
            message: "no \"room\"".to_owned(),
        };
        let wait = Answer::Wait {
            claim: 4,
            position: 2,
            reason: "c1 has it".to_owned(),
        };
        for (answer, expected) in [
            (
                member,
                r#"{"claim":3,"env":[["A","/x"]],"gpus":[{"generation":9,"slot":5,"uuid":"GPU-07070707-0707-0707-0707-070707070707"}],"name":"c3","ok":true}"#,
            ),
            (
                refused,
                r#"{"code":"full","message":"no \"room\"","ok":false}"#,
            ),
            (wait, r#"{"claim":4,"reason":"c1 has it","wait":2}"#),
            (
                Answer::Later { claim: 4, gpus: 2 },
                r#"{"claim":4,"later":2}"#,
            ),
        ] {
            assert_eq!(line(&answer), format!("{expected}\n"));
        }
    }
}
