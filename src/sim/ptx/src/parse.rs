//! The module level of PTX: directives, variables, functions and linking several texts.

mod body;
mod cursor;
mod decode;
mod operand;
mod registers;
mod variable;

use std::collections::HashMap;

use crate::error::PtxError;
use crate::ir::{Function, Place};
use crate::lexer::{Tok, lex};
use crate::module::{GlobalInfo, KernelInfo, Param, Space};
use cursor::Cursor;
pub(crate) use variable::Variable;

/// What a name of module scope stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Symbol {
    Function(u32),
    Global(u32),
    /// Offset in the module's shared memory.
    Shared(u32),
    DynamicShared,
}

/// Everything read so far.
#[derive(Debug, Default)]
pub(crate) struct Build {
    pub(crate) functions: Vec<Function>,
    pub(crate) defined: Vec<bool>,
    pub(crate) globals: Vec<GlobalInfo>,
    /// Whether a text defines the variable (else all only declare it), and where it was met.
    global_defined: Vec<(bool, u32)>,
    pub(crate) kernels: Vec<KernelInfo>,
    /// The function of each kernel.
    pub(crate) entries: Vec<u32>,
    /// Bytes of static shared memory of all functions.
    pub(crate) shared_bytes: u32,
    exports: HashMap<String, Symbol>,
}

/// Most bytes of one parameter.
const PARAM_MAX: u64 = 32 << 10;
/// Deepest nesting of initial values and operands.
const DEPTH_MAX: u32 = 32;

/// One text being read into the build.
pub(crate) struct Text<'t, 'b> {
    pub(crate) cur: Cursor<'t>,
    pub(crate) build: &'b mut Build,
    pub(crate) symbols: HashMap<&'t str, Symbol>,
    /// Braces and signs that are open, while nested things are read.
    pub(crate) depth: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linkage {
    Local,
    Visible,
    Extern,
}

/// Reads all texts; what one declares `.extern` another may define.
pub(crate) fn parse(texts: &[&str]) -> Result<Build, PtxError> {
    let mut build = Build::default();
    for text in texts {
        let cur = Cursor::new(text, lex(text)?);
        Text {
            cur,
            build: &mut build,
            symbols: HashMap::new(),
            depth: 0,
        }
        .module()?;
    }
    for (global, (defined, line)) in build.globals.iter().zip(&build.global_defined) {
        if !defined {
            let message = format!("variable {} is declared but defined nowhere", global.name);
            return Err(PtxError::new(*line, message));
        }
    }
    Ok(build)
}

pub(crate) fn align_up(value: u64, align: u64) -> u64 {
    value.next_multiple_of(align.max(1))
}

impl<'t> Text<'t, '_> {
    /// Reads something that may hold more of its kind.
    pub(crate) fn nested<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<R, PtxError>,
    ) -> Result<R, PtxError> {
        if self.depth >= DEPTH_MAX {
            return Err(self.cur.error("nested too deep"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn module(&mut self) -> Result<(), PtxError> {
        let mut linkage = Linkage::Local;
        let mut has_version = false;
        while let Some(token) = self.cur.next() {
            let Tok::Word(word) = token.tok else {
                if token.tok == Tok::Punct(b';') {
                    continue;
                }
                return Err(PtxError::new(token.line, "a directive is expected here"));
            };
            match word {
                ".version" => {
                    has_version = true;
                    self.cur.next();
                }
                ".address_size" => {
                    if self.cur.int()? != 64 {
                        return Err(self.cur.error("only 64-bit addresses are carried"));
                    }
                }
                ".target" => {
                    self.cur.word()?;
                    while self.cur.eat(b',') {
                        self.cur.word()?;
                    }
                }
                ".visible" | ".weak" | ".common" => linkage = Linkage::Visible,
                ".extern" => linkage = Linkage::Extern,
                ".entry" => {
                    self.function(true, Linkage::Visible)?;
                    linkage = Linkage::Local;
                }
                ".func" => {
                    self.function(false, linkage)?;
                    linkage = Linkage::Local;
                }
                ".global" | ".const" | ".shared" => {
                    self.module_variable(word, linkage)?;
                    linkage = Linkage::Local;
                }
                ".section" => {
                    self.cur.word()?;
                    self.cur.skip_braces()?;
                }
                ".pragma" | ".tex" | ".alias" => self.cur.skip_statement(),
                _ if word.starts_with('@') || !word.starts_with('.') => {
                    return Err(PtxError::new(
                        token.line,
                        format!("`{word}` is no directive"),
                    ));
                }
                _ => {
                    return Err(PtxError::new(
                        token.line,
                        format!("directive `{word}` is not known"),
                    ));
                }
            }
            if !has_version {
                return Err(PtxError::new(
                    token.line,
                    "the text does not begin with .version",
                ));
            }
        }
        if has_version {
            Ok(())
        } else {
            Err(PtxError::new(1, "the text holds no .version"))
        }
    }

    fn module_variable(&mut self, space: &str, linkage: Linkage) -> Result<(), PtxError> {
        let line = self.cur.line();
        let mut var = self.variable()?;
        loop {
            let (ty, align) = (var.ty, var.align);
            self.place(space, linkage, var, line)?;
            if !self.cur.eat(b',') {
                break;
            }
            var = self.declarator(ty, 1, Some(align))?;
        }
        self.cur.expect(b';')
    }

    fn place(
        &mut self,
        space: &str,
        linkage: Linkage,
        var: Variable<'t>,
        line: u32,
    ) -> Result<(), PtxError> {
        if space == ".shared" {
            let symbol = if var.open {
                Symbol::DynamicShared
            } else {
                Symbol::Shared(self.shared(&var)?)
            };
            self.symbols.insert(var.name, symbol);
            return Ok(());
        }
        let defined = linkage != Linkage::Extern;
        let exported = if linkage == Linkage::Local {
            None
        } else {
            self.build.exports.get(var.name)
        };
        let info = GlobalInfo {
            name: var.name.to_owned(),
            size: var.size as usize,
            align: var.align as usize,
            init: var.init,
            addresses: var.addresses,
            managed: var.managed,
            space: if space == ".const" {
                Space::Const
            } else {
                Space::Global
            },
        };
        let index = if let Some(Symbol::Global(index)) = exported {
            let index = *index;
            if defined && !self.build.global_defined[index as usize].0 {
                self.build.globals[index as usize] = info;
                self.build.global_defined[index as usize].0 = true;
            }
            index
        } else {
            let index = self.build.globals.len() as u32;
            self.build.globals.push(info);
            self.build.global_defined.push((defined, line));
            if linkage != Linkage::Local {
                self.build
                    .exports
                    .insert(var.name.to_owned(), Symbol::Global(index));
            }
            index
        };
        self.symbols.insert(var.name, Symbol::Global(index));
        Ok(())
    }

    /// Gives a shared variable its offset.
    pub(crate) fn shared(&mut self, var: &Variable<'_>) -> Result<u32, PtxError> {
        let offset = align_up(u64::from(self.build.shared_bytes), var.align);
        let end = offset + var.size;
        self.build.shared_bytes = u32::try_from(end)
            .ok()
            .filter(|end| *end <= 1 << 20)
            .ok_or_else(|| {
                self.cur
                    .error(format!("shared variable {} is too large", var.name))
            })?;
        Ok(offset as u32)
    }

    fn function_index(&mut self, name: &'t str, linkage: Linkage) -> u32 {
        if let Some(Symbol::Function(index)) = self.symbols.get(name) {
            return *index;
        }
        let exported = if linkage == Linkage::Local {
            None
        } else {
            self.build.exports.get(name)
        };
        let index = if let Some(Symbol::Function(index)) = exported {
            *index
        } else {
            let index = self.build.functions.len() as u32;
            self.build.functions.push(Function {
                name: name.to_owned(),
                ..Function::default()
            });
            self.build.defined.push(false);
            if linkage != Linkage::Local {
                self.build
                    .exports
                    .insert(name.to_owned(), Symbol::Function(index));
            }
            index
        };
        self.symbols.insert(name, Symbol::Function(index));
        index
    }

    fn function(&mut self, entry: bool, linkage: Linkage) -> Result<(), PtxError> {
        let mut frame = body::Frame::default();
        let rets = if self.cur.at(b'(') {
            self.formals(&mut frame, false)?
        } else {
            Vec::new()
        };
        let line = self.cur.line();
        let name = self.cur.word()?;
        let index = self.function_index(name, linkage);
        let params = if self.cur.at(b'(') {
            self.formals(&mut frame, entry)?
        } else {
            Vec::new()
        };
        let mut max_threads = 1024;
        loop {
            if self.cur.eat(b';') {
                return Ok(());
            }
            if self.cur.at(b'{') {
                break;
            }
            let word = self.cur.word()?;
            if matches!(word, ".maxntid" | ".reqntid") {
                max_threads = self.cur.int()?;
                while self.cur.eat(b',') {
                    max_threads = self.cur.int()?.saturating_mul(max_threads);
                }
            } else if word.starts_with('.') {
                while self.cur.int_ahead() {
                    self.cur.next();
                    self.cur.eat(b',');
                }
                if matches!(word, ".pragma") {
                    self.cur.skip_statement();
                }
            } else {
                return Err(self.cur.error(format!(
                    "`{word}` is not expected before the body of {name}"
                )));
            }
        }
        if self.build.defined[index as usize] {
            return Err(PtxError::new(
                line,
                format!("function {name} is defined twice"),
            ));
        }
        let shared_before = self.build.shared_bytes;
        let mut done = body::parse(self, frame)?;
        name.clone_into(&mut done.function.name);
        done.function.params = params.iter().map(|formal| formal.1).collect();
        done.function.rets = rets.iter().map(|formal| formal.1).collect();
        if entry {
            let params: Vec<_> = params.into_iter().map(|formal| formal.0).collect();
            self.build.kernels.push(KernelInfo {
                name: name.to_owned(),
                param_bytes: params.last().map_or(0, |p| p.offset + p.size),
                params,
                regs_estimate: registers::estimate(&done.function),
                static_shared_bytes: (self.build.shared_bytes - shared_before) as usize,
                local_bytes: done.local_bytes as usize,
                max_threads: max_threads.clamp(1, 1024) as u32,
                static_instructions: done
                    .function
                    .code
                    .iter()
                    .map(|i| usize::from(i.weight))
                    .sum(),
            });
            self.build.entries.push(index);
        }
        self.build.functions[index as usize] = done.function;
        self.build.defined[index as usize] = true;
        Ok(())
    }

    /// A parenthesised list of formal parameters.
    fn formals(
        &mut self,
        frame: &mut body::Frame<'t>,
        entry: bool,
    ) -> Result<Vec<(Param, Place)>, PtxError> {
        self.cur.expect(b'(')?;
        let mut out: Vec<(Param, Place)> = Vec::new();
        while !self.cur.eat(b')') {
            let space = self.cur.word()?;
            let var = self.variable()?;
            if var.size > PARAM_MAX {
                let message = format!("parameter {} is too large", var.name);
                return Err(self.cur.error(message));
            }
            let size = var.size as usize;
            let offset = out.last().map_or(0, |(p, _)| p.offset + p.size);
            let offset = offset.next_multiple_of(var.align as usize);
            let place = match space {
                ".reg" => frame.formal_register(&var),
                ".param" if entry => frame.kernel_param(&var, offset as u32),
                ".param" => frame.formal_param(&var),
                _ => return Err(self.cur.error(format!("`{space}` is no parameter"))),
            };
            out.push((
                Param {
                    name: var.name.to_owned(),
                    offset,
                    size,
                    align: var.align as usize,
                },
                place,
            ));
            self.cur.eat(b',');
        }
        Ok(out)
    }
}
