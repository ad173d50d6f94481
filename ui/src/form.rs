//! Dialogs with input lines: the typed text, and the call that it stands for.

use std::str::FromStr;

use gshare_proto::units::{Bytes, Share, parse_duration};
use gshare_proto::{Call, ClaimGpu, ClaimSpec, ClaimView, List, ResizeSpec, Text, Tried, Wait};

use crate::input::LineInput;
use crate::text::gib;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) label: &'static str,
    pub(crate) hint: String,
    pub(crate) input: LineInput,
}

/// Number of lines of a claim that most users need.
const FEW: usize = 4;

/// Default class of a claim.
const CLASS: &str = "interactive";

/// The command options for these lines, in order.
const FLAGS: [(&str, &str); 8] = [
    ("Size", "-g "),
    ("Model", "--model "),
    ("Memory", "--gpu-mem "),
    ("Limit", "--limit "),
    ("Name", "-n "),
    ("Class", "--class "),
    ("Hold for", "-t "),
    ("By", ""),
];

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Kind {
    #[default]
    Claim,
    /// Of this claim.
    Resize(String),
    Extend(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    pub(crate) entries: Vec<Entry>,
    pub(crate) focus: usize,
    pub(crate) sent: Option<u64>,
    pub(crate) refused: Option<String>,
    /// The service's answer to the dry run of this claim.
    pub(crate) tried: Option<(ClaimSpec, Result<Tried, String>)>,
    /// The dry run that is under way, and its claim.
    pub(crate) trying: Option<(u64, ClaimSpec)>,
}

fn text(label: &'static str, value: &str, hint: impl Into<String>) -> Entry {
    Entry {
        label,
        hint: hint.into(),
        input: LineInput::new(value),
    }
}

impl Form {
    fn new(kind: Kind, entries: Vec<Entry>) -> Self {
        Self {
            kind,
            entries,
            ..Self::default()
        }
    }

    pub(crate) fn claim() -> Self {
        let entries = vec![
            text("Size", "0.25", "0.25 of a GPU, or 2 whole GPUs"),
            text("Model", "", "h100; if empty, any GPU"),
            text("Hold for", "", "4h; if empty, the default, normally 2h"),
            text("Name", "", "for the screen"),
            text("Memory", "", "per GPU: 8G; if empty, in proportion to Size"),
            text("Limit", "", "compute limit: 0.8; if empty, all"),
            text("Class", CLASS, "interactive, batch or inference"),
        ];
        Self::new(Kind::Claim, entries)
    }

    pub(crate) fn resize(claim: &ClaimView) -> Self {
        let now = |of: fn(&ClaimGpu) -> String| claim.gpus.first().map(of).unwrap_or_default();
        let size = now(|g| format!("now {:.2}; if empty, unchanged", g.sm_request));
        let memory = now(|g| format!("now {} GiB on each GPU", gib(g.mem_request)));
        let limit = now(|g| format!("SM limit, now {:.2}", g.sm_limit));
        let entries = vec![
            text("Size", "", size),
            text("Memory", "", memory),
            text("Limit", "", limit),
        ];
        Self::new(Kind::Resize(claim.id.clone()), entries)
    }

    pub(crate) fn extend(claim: &ClaimView, ends: &str) -> Self {
        let entries = vec![text("By", "1h", format!("30m, 2h, 1d; now until {ends}"))];
        Self::new(Kind::Extend(claim.id.clone()), entries)
    }

    /// Number of visible lines: the rarely used ones are one line until the user goes there or has typed something.
    pub(crate) fn shown(&self) -> usize {
        let typed = |e: &Entry| !matches!(e.input.text(), "" | CLASS);
        match self.kind == Kind::Claim && self.focus < FEW && !self.entries[FEW..].iter().any(typed)
        {
            true => FEW,
            false => self.entries.len(),
        }
    }

    pub(crate) fn title(&self) -> String {
        match &self.kind {
            Kind::Claim => "Claim a part of a GPU".to_owned(),
            Kind::Resize(id) => format!("Another size for {id}"),
            Kind::Extend(id) => format!("More time for {id}"),
        }
    }

    /// A note that holds whatever is typed.
    pub(crate) fn note(&self) -> &'static str {
        match self.kind {
            Kind::Claim => "",
            Kind::Resize(_) => "Its programs keep running and keep the memory that they use.",
            Kind::Extend(_) => "Users who wait for it are notified of the new time.",
        }
    }

    pub(crate) fn line(&mut self) -> Option<&mut LineInput> {
        Some(&mut self.entries.get_mut(self.focus)?.input)
    }

    pub(crate) fn get(&self, label: &str) -> Option<String> {
        let entry = self.entries.iter().find(|e| e.label == label)?;
        let text = entry.input.text().trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn parsed<T: FromStr<Err: ToString>>(&self, label: &str) -> Result<Option<T>, String> {
        let parsed = self.get(label).map(|text| text.parse::<T>());
        parsed.transpose().map_err(|e| e.to_string())
    }

    /// Fraction of the SMs: `0.8` or `80%`.
    fn limit(&self) -> Result<Option<u32>, String> {
        let limit = self.parsed("Limit")?;
        match limit {
            Some(part) if part > Share::ONE => Err(format!("limit {part}: at most 1.0")),
            limit => Ok(limit.map(Share::milli)),
        }
    }

    /// The requested models: `h100,a100`.
    fn models(&self) -> List<Text<128>, 64> {
        let text = self.get("Model").unwrap_or_default();
        let names = text.split(',').map(|m| m.trim().to_owned());
        Vec::from_iter(names.filter(|m| !m.is_empty())).into()
    }

    /// The requested claim, or what is wrong with it.
    pub(crate) fn spec(&self) -> Result<ClaimSpec, String> {
        let size: Option<Share> = self.parsed("Size")?;
        let mem: Option<Bytes> = self.parsed("Memory")?;
        match size {
            None if mem.is_none() => return Err("size: write 0.25, or 2 for two GPUs".to_owned()),
            Some(size) if size > Share::ONE && !size.milli().is_multiple_of(1000) => {
                return Err(format!("size {size}: above one GPU, write a whole number"));
            }
            _ => {}
        }
        let hold = self.get("Hold for").map(|t| parse_duration(&t));
        let hold = hold.transpose().map_err(|e| e.to_string())?;
        Ok(ClaimSpec {
            gpus_milli: size.map(Share::milli),
            mem: mem.map(|b| b.0),
            sm_limit_milli: self.limit()?,
            name: self.get("Name").map(Into::into),
            class: self.get("Class").map(Into::into),
            lease_s: hold.map(|d| d.as_secs()),
            models: self.models(),
            wait: Wait::No,
            hold: true,
            ..ClaimSpec::default()
        })
    }

    fn change(&self, id: &str) -> Result<ResizeSpec, String> {
        let spec = ResizeSpec {
            id: id.to_owned().into(),
            gpus_milli: self.parsed("Size")?.map(Share::milli),
            mem: self.parsed("Memory")?.map(|b: Bytes| b.0),
            sm_limit_milli: self.limit()?,
            wait: Wait::No,
            ..ResizeSpec::default()
        };
        if spec.gpus_milli.is_none() && spec.mem.is_none() && spec.sm_limit_milli.is_none() {
            return Err("fill in at least one of size, memory and limit".to_owned());
        }
        Ok(spec)
    }

    pub(crate) fn call(&self) -> Result<Call, String> {
        match &self.kind {
            Kind::Claim => Ok(Call::Claim(Box::new(self.spec()?))),
            Kind::Resize(id) => Ok(Call::Resize(Box::new(self.change(id)?))),
            Kind::Extend(id) => {
                let by = self.get("By").ok_or("extend by: write 30m, 2h or 1d")?;
                let by = parse_duration(&by).map_err(|e| e.to_string())?;
                Ok(Call::Extend {
                    id: id.clone().into(),
                    by_s: by.as_secs(),
                })
            }
        }
    }

    /// The service's answer to what is typed now; none until it arrives.
    pub(crate) fn answer(&self) -> Option<&Result<Tried, String>> {
        let spec = self.spec().ok()?;
        let (tried, answer) = self.tried.as_ref()?;
        (*tried == spec).then_some(answer)
    }

    pub(crate) fn command(&self) -> String {
        let flag = |(label, flag): &(&str, &str)| {
            let value = self.get(label).filter(|v| !v.contains(' ') && v != CLASS);
            Some(format!(" {flag}{}", value?))
        };
        let flags: String = FLAGS.iter().filter_map(flag).collect();
        match &self.kind {
            Kind::Claim => format!("gshare claim{flags} --hold"),
            Kind::Resize(id) => format!("gshare resize {id}{flags}"),
            Kind::Extend(id) => format!("gshare extend {id}{flags}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form with these on its lines.
    fn typed(mut form: Form, lines: &[&str]) -> Form {
        for (entry, text) in form.entries.iter_mut().zip(lines) {
            entry.input = LineInput::new(*text);
        }
        form
    }

    #[test]
    fn what_was_typed_is_checked_and_is_a_command() {
        let wrong = |size: &str, memory: &str| {
            let form = typed(Form::claim(), &[size, "", "", "", memory]);
            form.call().err().unwrap_or_default()
        };
        assert_eq!(wrong("0.25", "8G"), "");
        assert!(wrong("1.5", "").contains("whole number"));
        assert!(wrong("", "").contains("write 0.25"));
        assert_eq!(wrong("", "8G"), "");
        assert!(wrong("0.5", "8").contains("K, M, G or T"));
        let form = typed(Form::claim(), &["0.25", "h100"]);
        assert_eq!(form.command(), "gshare claim -g 0.25 --model h100 --hold");
        assert_eq!(form.spec().unwrap().models, ["h100"]);
        let form = Form::resize(&ClaimView {
            id: "c1".to_owned(),
            ..ClaimView::default()
        });
        assert!(form.call().unwrap_err().contains("fill in at least one"));
        let form = typed(form, &["0.5", "5G"]);
        assert_eq!(form.command(), "gshare resize c1 -g 0.5 --gpu-mem 5G");
        assert!(form.call().is_ok());
    }

    #[test]
    fn the_answer_counts_for_what_was_asked_alone() {
        let mut form = Form::claim();
        let tried = Tried {
            starts: true,
            ..Tried::default()
        };
        form.tried = Some((form.spec().unwrap(), Ok(tried)));
        assert!(form.answer().is_some());
        assert_eq!(typed(form, &["0.2"]).answer(), None);
    }
}
