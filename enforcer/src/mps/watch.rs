//! Meaning of a daemon's answers: when it is restarted, when its clients are lost. Pure: time and answers are inputs.

use std::time::Duration;

use super::ServerState;

/// Wait before the second start in a row; doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait before a start.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A daemon that has lived for this long has not failed at its start.
const SETTLED: Duration = Duration::from_secs(30);

/// An observed server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub pid: i32,
    /// Its state by its own report.
    pub state: ServerState,
    /// Processes of its clients.
    pub clients: Vec<i32>,
}

/// One poll of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It does not answer.
    Silent,
    /// It answers, with these servers.
    Servers(Vec<Server>),
}

/// Changes since the previous poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsEvent {
    /// The daemon answers.
    Up,
    /// It does not answer any more.
    Down,
    /// A server is gone, with the GPU work of these clients.
    ServerLost {
        /// The server.
        pid: i32,
        /// Its last known clients.
        clients: Vec<i32>,
    },
    /// A fault of one client has ended the GPU work of all of these.
    Fault {
        /// The server.
        pid: i32,
        clients: Vec<i32>,
    },
    /// A server with a fault serves again.
    Well {
        /// The server.
        pid: i32,
    },
}

/// A supervisor's state.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    up: bool,
    up_since: Duration,
    servers: Vec<Server>,
    failures: u32,
    not_before: Duration,
}

impl Watch {
    /// Takes a poll; returns the changes.
    pub fn look(&mut self, now: Duration, look: Look) -> Vec<MpsEvent> {
        let mut events = Vec::new();
        let seen = match look {
            Look::Silent => {
                if std::mem::replace(&mut self.up, false) {
                    events.push(MpsEvent::Down);
                    if now.saturating_sub(self.up_since) >= SETTLED {
                        self.failures = 0;
                    }
                }
                Vec::new()
            }
            Look::Servers(servers) => {
                if !std::mem::replace(&mut self.up, true) {
                    self.up_since = now;
                    events.push(MpsEvent::Up);
                }
                servers
            }
        };
        for old in &self.servers {
            match seen.iter().find(|s| s.pid == old.pid) {
                // A server without clients ends when another user comes: nothing is lost.
                None if old.clients.is_empty() => {}
                None => events.push(MpsEvent::ServerLost {
                    pid: old.pid,
                    clients: old.clients.clone(),
                }),
                Some(new) => events.extend(change(old, new)),
            }
        }
        let known = |s: &&Server| self.servers.iter().any(|old| old.pid == s.pid);
        for new in seen.iter().filter(|s| !known(s)) {
            if new.state == ServerState::Fault {
                events.push(MpsEvent::Fault {
                    pid: new.pid,
                    clients: new.clients.clone(),
                });
            }
        }
        self.servers = seen;
        events
    }

    /// Whether to start a silent daemon now.
    #[must_use]
    pub fn start_now(&self, now: Duration) -> bool {
        !self.up && now >= self.not_before
    }

    /// A start was attempted: the next one waits, each time longer.
    pub fn tried(&mut self, now: Duration) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16));
        self.not_before = now.saturating_add(wait.min(LONGEST_WAIT));
        self.failures = self.failures.saturating_add(1);
    }

    /// The servers at the last poll.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }
}

fn change(old: &Server, new: &Server) -> Option<MpsEvent> {
    let fault = |s: &Server| s.state == ServerState::Fault;
    match (fault(old), fault(new)) {
        // Clients that have gone since may have gone because of it.
        (false, true) => {
            let mut clients = old.clients.clone();
            clients.extend(&new.clients);
            clients.sort_unstable();
            clients.dedup();
            Some(MpsEvent::Fault {
                pid: new.pid,
                clients,
            })
        }
        (true, false) => Some(MpsEvent::Well { pid: new.pid }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(pid: i32, state: ServerState, clients: &[i32]) -> Look {
        Look::Servers(vec![Server {
            pid,
            state,
            clients: clients.to_vec(),
        }])
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_fault_is_told_once_with_all_whom_it_hit() {
        let mut watch = Watch::default();
        assert_eq!(
            watch.look(at(0), server(5, ServerState::Active, &[1, 2])),
            [MpsEvent::Up]
        );
        let fault = watch.look(at(1), server(5, ServerState::Fault, &[2, 3]));
        assert_eq!(
            fault,
            [MpsEvent::Fault {
                pid: 5,
                clients: vec![1, 2, 3]
            }]
        );
        assert!(
            watch
                .look(at(2), server(5, ServerState::Fault, &[3]))
                .is_empty()
        );
        assert_eq!(
            watch.look(at(3), server(5, ServerState::Active, &[])),
            [MpsEvent::Well { pid: 5 }]
        );
    }

    #[test]
    fn a_server_that_goes_takes_its_clients_along_and_one_without_any_nothing() {
        let mut watch = Watch::default();
        watch.look(at(0), server(5, ServerState::Active, &[1]));
        let lost = watch.look(at(1), server(6, ServerState::Active, &[]));
        assert_eq!(
            lost,
            [MpsEvent::ServerLost {
                pid: 5,
                clients: vec![1]
            }]
        );
        assert!(watch.look(at(2), Look::Servers(Vec::new())).is_empty());
    }

    #[test]
    fn starts_wait_longer_each_time_until_one_has_held() {
        let mut watch = Watch::default();
        let mut waits = Vec::new();
        let mut now = at(0);
        for _ in 0..8 {
            assert!(watch.start_now(now));
            watch.tried(now);
            let mut wait = 0;
            while !watch.start_now(now) {
                now += at(1);
                wait += 1;
            }
            waits.push(wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        watch.look(now, Look::Servers(Vec::new()));
        assert!(!watch.start_now(now), "it runs");
        let down = watch.look(now + at(100), Look::Silent);
        assert_eq!(down, [MpsEvent::Down]);
        watch.tried(now + at(100));
        assert!(watch.start_now(now + at(101)), "it begins anew");
    }
}
