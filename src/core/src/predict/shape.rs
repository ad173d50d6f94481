//! Normalizes commands: program, script, and the shape of the arguments. Numbers become features, paths are reduced to
//! their last part without numbers, everything else is kept as words.

/// A normalized command.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Program without its directory, for example `python`.
    pub program: String,
    /// Script, module, or the program itself, for example `train.py`.
    pub script: String,
    /// Arguments without their numbers, sorted: `--amp --data=part-#.bin`.
    pub words: String,
    /// Numbers in the arguments with their names, sorted by name.
    pub numbers: Vec<(String, f64)>,
}

/// Maximum length of the words, in bytes.
const LONGEST: usize = 400;
/// Maximum number of numbers.
const MOST: usize = 24;
/// Programs whose first argument is a script.
const RUNNERS: [&str; 11] = [
    "python", "python2", "python3", "pypy3", "bash", "sh", "julia", "Rscript", "perl", "ruby",
    "node",
];
/// Programs that start other programs: the command follows.
const STARTERS: [&str; 10] = [
    "env", "nice", "nohup", "time", "stdbuf", "srun", "taskset", "numactl", "ionice", "exec",
];

fn base(path: &str) -> &str {
    path.rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(path)
}

/// Treats `python3.11` as `python3`.
fn runner(word: &str) -> Option<&'static str> {
    let name = base(word);
    let short = name.split_once('.').map_or(name, |(head, _)| head);
    RUNNERS.into_iter().find(|r| *r == short)
}

/// Letters of a program's flags before code, before a module, and before a value that is no script.
fn letters(program: &str) -> [&'static str; 3] {
    match program {
        "bash" | "sh" => ["c", "", "oO"],
        "perl" => ["eE", "", "MmI"],
        "ruby" => ["e", "", "rIEC"],
        "node" => ["ep", "", "rC"],
        "julia" => ["eE", "m", "pLtJHC"],
        "Rscript" => ["e", "", ""],
        _ => ["c", "m", "WXQ"],
    }
}

/// Whether a text can be the name of a number, and is neither a path nor code.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    (1..=64).contains(&text.len()) && text.chars().all(fits)
}

fn number(text: &str) -> Option<f64> {
    let plain = text.trim();
    let first = plain.chars().next()?;
    if !(first.is_ascii_digit() || matches!(first, '-' | '+' | '.')) {
        return None;
    }
    let (digits, unit) = match plain.as_bytes().last()? {
        b'k' | b'K' => (&plain[..plain.len() - 1], 1e3),
        b'm' | b'M' => (&plain[..plain.len() - 1], 1e6),
        b'g' | b'G' => (&plain[..plain.len() - 1], 1e9),
        _ => (plain, 1.0),
    };
    digits
        .parse::<f64>()
        .ok()
        .map(|n| n * unit)
        .filter(|n| n.is_finite())
}

/// The last part of a path, without numbers.
fn reduced(text: &str) -> String {
    if !(text.contains('/') || text.starts_with('~')) {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in base(text).chars() {
        if c.is_ascii_digit() {
            if !out.ends_with('#') {
                out.push('#');
            }
        } else {
            out.push(c);
        }
    }
    out
}

impl Shape {
    /// Normalizes a command line.
    #[must_use]
    pub fn of(command: &[String]) -> Self {
        let mut words = command.iter().map(String::as_str).peekable();
        // Skip programs that only start the command, and environment variables.
        let assigns = |word: &str| {
            let name = word.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| !name.starts_with('-') && !name.contains('/'))
        };
        let mut starter = None;
        while let Some(word) = words.next_if(|w| assigns(w) || STARTERS.contains(&base(w))) {
            starter = Some(word).filter(|w| !assigns(w)).or(starter);
        }
        // A starter's own flag is no program.
        let starter = starter.filter(|_| words.peek().is_some_and(|w| w.starts_with('-')));
        let Some(program) = starter.or_else(|| words.next()) else {
            return Self::default();
        };
        let program_name = runner(program).unwrap_or_else(|| base(program));
        let mut script = program_name;
        if runner(program).is_some()
            || matches!(program_name, "torchrun" | "accelerate" | "uv" | "deepspeed")
        {
            let mut of = program_name;
            let mut code = false;
            while let Some(word) = words.next() {
                let flags = match word.strip_prefix('-') {
                    Some("") => {
                        script = word;
                        break;
                    }
                    Some(long) if long.starts_with('-') => {
                        code |= matches!(long, "-eval" | "-print");
                        continue;
                    }
                    Some(flags) => flags,
                    None if code => break,
                    None if matches!(word, "run" | "launch") || number(word).is_some() => continue,
                    None => match runner(word) {
                        Some(inner) => {
                            of = inner;
                            continue;
                        }
                        None => {
                            script = base(word);
                            break;
                        }
                    },
                };
                let kinds = letters(of);
                let kind = |c| kinds.iter().position(|kind| kind.contains(c));
                let found = flags
                    .char_indices()
                    .find_map(|(at, c)| Some((at, kind(c)?)));
                match found.map(|(at, kind)| (kind, &flags[at + 1..])) {
                    None => {}
                    Some((0, rest)) => {
                        code = true;
                        // To shells the rest are flags, to others it is the code.
                        if !rest.is_empty() && !matches!(of, "bash" | "sh") {
                            break;
                        }
                    }
                    Some((1, "")) => {
                        script = words.next().map_or("-m", base);
                        break;
                    }
                    Some((1, module)) => {
                        script = base(module);
                        break;
                    }
                    Some((_, "")) => {
                        words.next();
                    }
                    Some(_) => {}
                }
            }
            if code {
                script = "-c";
            }
        }
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        let mut place = 0;
        while let Some(word) = words.next() {
            let flag = word.starts_with('-') && number(word).is_none();
            let (key, value) = match word.split_once('=') {
                Some((key, value)) if is_name(key.trim_start_matches('-')) => {
                    (key.trim_start_matches('-').to_owned(), Some(value))
                }
                None if flag && is_name(word.trim_start_matches('-')) => {
                    let follows = |next: &&str| !next.starts_with('-') || number(next).is_some();
                    (
                        word.trim_start_matches('-').to_owned(),
                        words.next_if(follows),
                    )
                }
                _ => {
                    place += 1;
                    (format!("argument {place}"), Some(word))
                }
            };
            let key = key.replace('_', "-");
            match value {
                Some(value) => match number(value) {
                    Some(n) => {
                        texts.push(format!("{key}=#"));
                        numbers.push((key, n));
                    }
                    None => texts.push(format!("{key}={}", reduced(value))),
                },
                None => texts.push(key),
            }
        }
        texts.sort();
        numbers.sort_by(|a: &(String, f64), b| a.0.cmp(&b.0));
        numbers.dedup_by(|b, a| a.0 == b.0);
        numbers.truncate(MOST);
        let mut text = texts.join(" ");
        if text.len() > LONGEST {
            let cut = (0..=LONGEST).rev().find(|i| text.is_char_boundary(*i));
            text.truncate(cut.unwrap_or(0));
        }
        Self {
            program: program_name.to_owned(),
            script: script.to_owned(),
            words: text,
            numbers,
        }
    }

    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        let found = self.numbers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    }
}
