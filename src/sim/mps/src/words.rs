//! Commands and replies. Messages that the real program only logs are omitted.

use std::sync::Arc;

use nix::unistd::Uid;

use crate::control::{Control, Settings, State};
use crate::percent::{mebibytes, percentage, shown};

/// The target of a setting: future servers, or a running one.
enum Scope {
    Defaults,
    Server(u32),
}

fn not_found(pid: u32) -> String {
    format!("Server {pid} not found\n")
}

fn number(word: Option<&&str>) -> u32 {
    word.and_then(|w| w.parse().ok()).unwrap_or(0)
}

impl Control {
    /// The reply to a user's command; `None` ends the daemon.
    pub(crate) fn answer(self: &Arc<Self>, line: &str, uid: u32) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let own = Uid::effective().as_raw();
        let owner = uid == 0 || uid == own;
        let denied = || {
            format!(
                "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user \
                 started it or by the root user.\n"
            )
        };
        let first = words.get(1);
        let pid = number(first);
        let reply = match words.first().copied().unwrap_or("") {
            "quit" if owner => return None,
            "quit" => "Not enough privilege to execute quit command\n".to_owned(),
            "get_server_list" => {
                let state = self.state();
                let pids = state.servers.iter().filter(|s| s.board.is_some());
                pids.map(|s| format!("{}\n", s.pid)).collect()
            }
            "get_server_status" => self.status(first),
            "start_server" => self.start(&words, uid),
            "shutdown_server" => self.shutdown(pid, uid),
            "get_client_list" => self.of_server(pid, |state, _| clients(state, Some(pid))),
            "get_device_client_list" => match first {
                Some(_) => self.of_server(pid, |state, _| clients(state, Some(pid))),
                None => clients(&self.state(), None),
            },
            "ps" => self.ps(&words),
            "get_default_active_thread_percentage" => format!("{}\n", self.shown_default()),
            "set_default_active_thread_percentage" if owner => {
                self.set(&Scope::Defaults, |s| set_percentage(s, first))
            }
            "get_active_thread_percentage" => self.of_server(pid, |_, s| percentage_of(s)),
            "set_active_thread_percentage" => {
                self.set(&Scope::Server(pid), |s| set_percentage(s, words.get(2)))
            }
            "get_default_device_pinned_mem_limit" => {
                pinned_of(&self.state().defaults, self.ordinal(first))
            }
            "set_default_device_pinned_mem_limit" if owner => {
                let device = self.ordinal(first);
                self.set(&Scope::Defaults, |s| set_pinned(s, device, words.get(2)))
            }
            "get_device_pinned_mem_limit" => {
                let device = self.ordinal(words.get(2));
                self.of_server(pid, |_, s| pinned_of(s, device))
            }
            "set_device_pinned_mem_limit" => {
                let device = self.ordinal(words.get(2));
                self.set(&Scope::Server(pid), |s| set_pinned(s, device, words.get(3)))
            }
            "get_default_client_priority" => format!("{}\n", self.state().defaults.priority),
            "set_default_client_priority" if owner => {
                self.set(&Scope::Defaults, |s| set_priority(s, first))
            }
            "set_default_active_thread_percentage"
            | "set_default_device_pinned_mem_limit"
            | "set_default_client_priority" => denied(),
            "terminate_client" => self.terminated(pid, number(words.get(2))),
            other => format!("Unknown command \"{other}\"\n"),
        };
        Some(reply)
    }

    fn of_server(&self, pid: u32, say: impl FnOnce(&State, &Settings) -> String) -> String {
        let state = self.state();
        match state.servers.iter().find(|s| s.pid == pid) {
            Some(server) => say(&state, &server.settings),
            None => not_found(pid),
        }
    }

    fn set(&self, scope: &Scope, change: impl FnOnce(&mut Settings) -> String) -> String {
        let mut state = self.state();
        match scope {
            Scope::Defaults => change(&mut state.defaults),
            Scope::Server(pid) => match state.servers.iter_mut().find(|s| s.pid == *pid) {
                Some(server) => change(&mut server.settings),
                None => not_found(*pid),
            },
        }
    }

    fn ordinal(&self, word: Option<&&str>) -> Option<usize> {
        let word = word?;
        match word.parse::<usize>() {
            Ok(index) => (index < 32).then_some(index),
            Err(_) => self.uuids().iter().position(|uuid| uuid == word),
        }
    }

    fn status(&self, word: Option<&&str>) -> String {
        let Some(pid) = word.and_then(|w| w.parse().ok()) else {
            return "A server PID is required\n".to_owned();
        };
        let state = self.state();
        let Some(server) = state.servers.iter().find(|s| s.pid == pid) else {
            return not_found(pid);
        };
        let word = match server.board {
            None => "INITIALIZING",
            Some(_) if self.fault_of(&state, pid) != 0 => "FAULT",
            Some(_) => "ACTIVE",
        };
        format!("{word}\n")
    }

    fn start(self: &Arc<Self>, words: &[&str], uid: u32) -> String {
        let wanted = match words {
            [_, "-uid", wanted, ..] => wanted.parse::<u32>().ok(),
            _ => None,
        };
        let Some(wanted) = wanted else {
            return "A user id (UID) is required to start a new server\n".to_owned();
        };
        if uid != 0 && uid != wanted {
            return format!(
                "Insufficient privileges for UID {uid}. Only the root user may start server for another user.\n"
            );
        }
        let mut state = self.state();
        if state.servers.is_empty() {
            self.start_server(&mut state, wanted);
        }
        String::new()
    }

    fn shutdown(&self, pid: u32, uid: u32) -> String {
        let mut state = self.state();
        let Some(server) = state.servers.iter_mut().find(|s| s.pid == pid) else {
            return not_found(pid);
        };
        if uid != 0 && uid != server.uid {
            return format!(
                "Insufficient privileges for UID {uid}. Only the root user may shutdown another user's server.\n"
            );
        }
        server.let_go();
        String::new()
    }

    fn terminated(&self, server: u32, client: u32) -> String {
        let state = self.state();
        if !state.servers.iter().any(|s| s.pid == server) {
            return format!("Server {server} not found\nServer {server} not found!\n1\n");
        }
        if self.terminate(&state, server, client) {
            "0\n".to_owned()
        } else {
            format!("Invalid process {client}!\n1\n")
        }
    }

    fn ps(&self, words: &[&str]) -> String {
        let state = self.state();
        let only = match words {
            [_, "-p", pid, ..] => pid.parse::<u32>().ok(),
            _ => None,
        };
        if let Some(pid) = only.filter(|p| !state.servers.iter().any(|s| s.pid == *p)) {
            return format!("Server {pid} not found\nServer {pid} not found\n\n");
        }
        if state.servers.is_empty() {
            return "Server not found\n".to_owned();
        }
        let uuids = self.uuids();
        let device = uuids.first().map_or("", String::as_str);
        let mut out = format!(
            "{:<10}{:<10}{:<15}{:<45}{:<15}{:<15}\n",
            "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"
        );
        let shown = |c: &&crate::control::Client| only.is_none_or(|pid| pid == c.server);
        for (id, client) in (1..).zip(state.clients.iter().filter(shown)) {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", client.pid));
            let ns = std::fs::read_link(format!("/proc/{}/ns/pid", client.pid));
            let ns = ns.map_or_else(|_| String::new(), |n| n.display().to_string());
            let ns = ns.trim_matches(|c: char| !c.is_ascii_digit());
            let name = name.unwrap_or_default();
            out.push_str(&format!(
                "{:<10}{id:<10}{:<15}{device:<45}{ns:<15}{:<15}\n",
                client.pid,
                client.server,
                name.trim_end()
            ));
        }
        out
    }
}

fn clients(state: &State, server: Option<u32>) -> String {
    let of = state
        .clients
        .iter()
        .filter(|c| server.is_none_or(|s| s == c.server));
    of.map(|c| format!("{}\n", c.pid)).collect()
}

fn percentage_of(settings: &Settings) -> String {
    format!("{}\n", shown(settings.percentage))
}

/// After any input the program prints the value in force.
fn set_percentage(settings: &mut Settings, word: Option<&&str>) -> String {
    if let Some(value) = word.and_then(|w| percentage(w)) {
        settings.percentage = value;
    }
    percentage_of(settings)
}

fn pinned_of(settings: &Settings, device: Option<usize>) -> String {
    let limit = device.and_then(|d| settings.pinned.get(&d));
    let limit = limit.filter(|mib| **mib > 0);
    limit.map_or_else(String::new, |mib| {
        // GiB are printed as whole numbers.
        if *mib >= 1024 {
            format!("{}G\n", mib / 1024)
        } else {
            format!("{mib}M\n")
        }
    })
}

fn set_pinned(settings: &mut Settings, device: Option<usize>, size: Option<&&str>) -> String {
    if let (Some(device), Some(mib)) = (device, size.and_then(|s| mebibytes(s))) {
        settings.pinned.insert(device, mib);
    }
    String::new()
}

fn set_priority(settings: &mut Settings, word: Option<&&str>) -> String {
    match word.map(|w| w.parse().unwrap_or(0)) {
        Some(priority @ (0 | 1)) => {
            settings.priority = priority;
            String::new()
        }
        Some(_) => "Invalid priority value - must be 0 or 1!\n".to_owned(),
        None => String::new(),
    }
}
