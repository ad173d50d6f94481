//! One request to a web server of the same user on this machine: over TCP or a socket file, with TLS if the server
//! uses it.
//!
//! The request carries the user's token, so it is sent only to a socket that the kernel attributes to this user: a
//! process that took the port of a server that has ended gets nothing. For the same reason certificates are not
//! checked: most servers use self-signed ones, which prove less than the kernel does.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

/// Longest head of an answer, in bytes.
const HEAD: usize = 32 << 10;
/// The kernel's code for a listening socket (`TCP_LISTEN`, hexadecimal).
const LISTENS: &str = "0A";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A port, on any address of this machine.
    Port(u16),
    /// A socket file.
    File(PathBuf),
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub place: Place,
    /// Whether it uses TLS.
    pub tls: bool,
    /// Host name, as in the user's file.
    pub host: String,
    /// Prefix of its paths, without a `/` at the end.
    pub prefix: String,
}

impl Address {
    /// Parses an address from Jupyter: `https://localhost:8888/user/ada/`, or `http+unix://%2Frun%2Fjupyter.sock/`
    /// with the path of the socket file itself.
    pub(super) fn read(url: &str, sock: &str, secure: bool) -> Option<Self> {
        // Such a character would end a line of the request.
        if url.bytes().any(|b| b.is_ascii_control() || b == b' ') {
            return None;
        }
        let (scheme, rest) = url.split_once("://")?;
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("/{prefix}"),
        };
        let tls = secure || scheme.starts_with("https");
        if !sock.is_empty() {
            let place = Place::File(Path::new(sock).is_absolute().then(|| sock.into())?);
            let host = "localhost".to_owned();
            return Some(Self {
                place,
                tls,
                host,
                prefix,
            });
        }
        let port = match host.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => port.parse().ok()?,
            _ if tls => 443,
            _ => 80,
        };
        Some(Self {
            place: Place::Port(port),
            tls,
            host: host.to_owned(),
            prefix,
        })
    }

    /// `GET` of a path below the prefix; returns the body of a successful answer.
    ///
    /// # Errors
    ///
    /// When the server is gone, is another user's, or its answer is late, too long, or no success.
    pub(super) fn get(
        &self,
        path: &str,
        token: &str,
        patience: Duration,
        longest: usize,
    ) -> io::Result<Vec<u8>> {
        if token.bytes().any(|b| b.is_ascii_control()) {
            return Err(io::Error::other("its token is not valid"));
        }
        let end = Instant::now() + patience;
        let plain = Bounded {
            stream: self.connect(patience)?,
            end,
        };
        // HTTP/1.0, so that the answer is not chunked.
        let mut question = format!(
            "GET {}{path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n",
            self.prefix, self.host
        );
        if !token.is_empty() {
            question += &format!("Authorization: token {token}\r\n");
        }
        question += "\r\n";
        if !self.tls {
            return ask(plain, &question, longest);
        }
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let connection =
            ClientConnection::new(any_certificate()?, name).map_err(io::Error::other)?;
        ask(StreamOwned::new(connection, plain), &question, longest)
    }

    fn connect(&self, patience: Duration) -> io::Result<Stream> {
        match &self.place {
            Place::Port(port) => {
                let stream = TcpStream::connect_timeout(&listener(*port)?, patience)?;
                // Checked again after connecting: the server may have ended in between.
                listener(*port)?;
                Ok(Stream::Port(stream))
            }
            Place::File(path) => Ok(Stream::File(at_file(path)?)),
        }
    }
}

/// Address of this user's listening socket on a port.
fn listener(port: u16) -> io::Result<SocketAddr> {
    let own = nix::unistd::Uid::effective().as_raw();
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let texts = tables.iter().filter_map(|t| fs::read_to_string(t).ok());
    let mut found = texts.flat_map(|text| {
        text.lines()
            .filter_map(|l| listens(l, port, own))
            .collect::<Vec<_>>()
    });
    found.next().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "no socket of this user listens there",
        )
    })
}

/// The address in a line of `/proc/net/tcp` or `tcp6`, if this user's socket listens on the port.
fn listens(line: &str, port: u16, uid: u32) -> Option<SocketAddr> {
    let mut words = line.split_ascii_whitespace();
    let (address, state, owner) = (words.nth(1)?, words.nth(1)?, words.nth(3)?);
    let (address, at) = address.split_once(':')?;
    if state != LISTENS || owner.parse() != Ok(uid) || u16::from_str_radix(at, 16) != Ok(port) {
        return None;
    }
    // Words of four bytes, in this processor's order.
    let mut bytes = Vec::new();
    for start in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(four.into()),
        Err(_) => IpAddr::V6(<[u8; 16]>::try_from(bytes.as_slice()).ok()?.into()),
    };
    let address = match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        one => one,
    };
    Some(SocketAddr::new(address, port))
}

/// Connects to a socket file on which this user listens. A full queue is not waited for.
fn at_file(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = socket::getsockopt(&socket, sockopt::PeerCredentials)?;
    if peer.uid() != nix::unistd::Uid::effective().as_raw() {
        let why = "another user listens there";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Sends the request, and reads the answer to its end.
fn ask(mut stream: impl Read + Write, question: &str, longest: usize) -> io::Result<Vec<u8>> {
    stream.write_all(question.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    let most = HEAD + longest;
    let mut part = [0; 16 << 10];
    while answer.len() <= most && !whole(&answer) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&part[..n]),
            // Tornado closes TLS without a notice.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let Some((head, start)) = head(&answer) else {
        return Err(io::Error::other("that is not an HTTP response"));
    };
    let status = head.split_ascii_whitespace().nth(1).unwrap_or("none");
    if status != "200" {
        let kind = match status {
            "401" | "403" => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        let why = format!("it answers with status {status}");
        return Err(io::Error::new(kind, why));
    }
    let body = answer.split_off(start);
    if body.len() > longest {
        return Err(io::Error::other("its answer is too long"));
    }
    Ok(body)
}

/// The head of an answer, and the position of its body.
fn head(answer: &[u8]) -> Option<(&str, usize)> {
    let seen = &answer[..answer.len().min(HEAD)];
    let end = seen.windows(4).position(|w| w == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&seen[..end]).ok()?, end + 4))
}

/// Whether an answer with a length is complete.
fn whole(answer: &[u8]) -> bool {
    head(answer).is_some_and(|(head, start)| {
        let mut fields = head.lines().filter_map(|l| l.split_once(':'));
        let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|(_, value)| value.trim().parse::<usize>().ok());
        length.is_some_and(|length| answer.len() - start >= length)
    })
}

#[derive(Debug)]
enum Stream {
    Port(TcpStream),
    File(UnixStream),
}

/// A connection with a time limit for everything.
#[derive(Debug)]
struct Bounded {
    stream: Stream,
    end: Instant,
}

impl Bounded {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Bounded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.stream {
            Stream::Port(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(into)
            }
            Stream::File(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(into)
            }
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.stream {
            Stream::Port(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(from)
            }
            Stream::File(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(from)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Accepts any certificate: the kernel has identified the server.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl AnyCertificate {
    /// Without trust in the certificate, its signature proves nothing.
    fn signature() -> HandshakeSignatureValid {
        HandshakeSignatureValid::assertion()
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(Self::signature())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(Self::signature())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn any_certificate() -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    fn address(url: &str, sock: &str) -> Option<(Place, bool, String, String)> {
        let a = Address::read(url, sock, false)?;
        Some((a.place, a.tls, a.host, a.prefix))
    }

    #[test]
    fn addresses_are_read_as_jupyter_writes_them() {
        let of = |port, tls, host: &str, prefix: &str| {
            Some((Place::Port(port), tls, host.to_owned(), prefix.to_owned()))
        };
        assert_eq!(
            address("http://localhost:8888/", ""),
            of(8888, false, "localhost:8888", "")
        );
        assert_eq!(
            address("https://127.0.0.1:9/user/ada@x/", ""),
            of(9, true, "127.0.0.1:9", "/user/ada@x")
        );
        assert_eq!(address("http://[::1]:7/", ""), of(7, false, "[::1]:7", ""));
        assert_eq!(address("https://[::1]/", ""), of(443, true, "[::1]", ""));
        let file = Some((
            Place::File("/run/j.sock".into()),
            false,
            "localhost".into(),
            "/x".into(),
        ));
        assert_eq!(
            address("http+unix://%2Frun%2Fj.sock/x/", "/run/j.sock"),
            file
        );
        for wrong in [
            "",
            "nothing",
            "http://a:b/",
            "http://a:99999/",
            "http://a:1/ HTTP/1.1\r\nX: y",
        ] {
            assert_eq!(address(wrong, ""), None, "{wrong}");
        }
        assert_eq!(address("http+unix://j.sock/", "j.sock"), None);
    }

    #[test]
    fn sockets_are_found_by_who_listens() {
        let line = "   3: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 x";
        let found = |port, uid| listens(line, port, uid).map(|a| a.to_string());
        if cfg!(target_endian = "little") {
            assert_eq!(found(8080, 1000).as_deref(), Some("127.0.0.1:8080"));
        }
        assert_eq!((found(8081, 1000), found(8080, 0)), (None, None));
        assert_eq!(
            listens(&line.replace(" 0A ", " 01 "), 8080, 1000),
            None,
            "connected"
        );
        assert_eq!(listens("sl local_address", 1, 0), None);
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(server) = TcpListener::bind(at) else {
                continue;
            };
            let port = server.local_addr().expect("named").port();
            let found = listener(port).expect("found");
            assert!(found.ip().is_loopback(), "{at}: {found}");
            TcpStream::connect(found).expect("it is there");
            drop(server);
            assert!(listener(port).is_err(), "it has gone");
        }
    }

    /// The result for a server with this answer, and the time that it took.
    fn said(answer: &'static [u8], slowly: bool) -> (io::Result<Vec<u8>>, Duration) {
        let (got, took, _) = says(answer, slowly, false);
        (got, took)
    }

    /// The same, with what the server received; `tls`: its file announces TLS.
    fn says(
        answer: &'static [u8],
        slowly: bool,
        tls: bool,
    ) -> (io::Result<Vec<u8>>, Duration, Vec<u8>) {
        let dir = tempfile::tempdir().expect("made");
        let path = dir.path().join("s");
        let server = UnixListener::bind(&path).expect("bound");
        let thread = thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("asked");
            let mut heard = vec![0; 1000];
            let n = stream.read(&mut heard).unwrap_or(0);
            heard.truncate(n);
            for part in answer.chunks(if slowly { 1 } else { answer.len().max(1) }) {
                thread::sleep(Duration::from_millis(if slowly { 20 } else { 0 }));
                if stream.write_all(part).is_err() {
                    break;
                }
            }
            if tls {
                let _ = stream.read_to_end(&mut heard);
            }
            heard
        });
        let address =
            Address::read("http+unix://s/", path.to_str().expect("text"), tls).expect("an address");
        let begun = Instant::now();
        let got = address.get("/x", "secret", Duration::from_millis(700), 4096);
        let took = begun.elapsed();
        drop(dir);
        (got, took, thread.join().expect("served"))
    }

    /// Longer than the limit.
    static LONG: [u8; 60_000] = {
        let mut text = [b' '; 60_000];
        let start = *b"HTTP/1.0 200 OK\r\n\r\n";
        let mut i = 0;
        while i < start.len() {
            text[i] = start[i];
            i += 1;
        }
        text
    };

    #[test]
    fn only_a_whole_answer_in_time_is_one() {
        let got = |answer| said(answer, false).0;
        assert_eq!(
            got(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]").expect("it is"),
            b"[]"
        );
        assert_eq!(got(b"HTTP/1.0 200 OK\r\n\r\n[]").expect("it is"), b"[]");
        for wrong in [
            &b""[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
            b"\r\n\r\n\r\n\r\n",
            &[b'x'; 200_000],
        ] {
            assert!(got(wrong).is_err(), "{wrong:?}");
        }
        assert!(got(&LONG).is_err(), "it is not read to its end");
        let (slow, took) = said(&LONG, true);
        assert!(slow.is_err() && took < Duration::from_secs(5), "{took:?}");
    }

    #[test]
    fn a_server_that_only_seems_to_speak_tls_gets_no_token() {
        let records = [0x16, 0x03, 0x03, 0x40, 0x00, 0x02].as_slice();
        let alert = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28].as_slice();
        for (answer, slowly) in [
            (&b"HTTP/1.0 200 OK\r\n\r\n[]"[..], false),
            (b"", false),
            (records, false),
            (alert, false),
            (&[0x16; 200_000], false),
            (&LONG, false),
            (&LONG, true),
        ] {
            let (got, took, heard) = says(answer, slowly, true);
            assert!(got.is_err() && took < Duration::from_secs(5), "{took:?}");
            assert!(heard.starts_with(&[0x16]), "a greeting of TLS");
            assert!(!heard.windows(6).any(|w| w == b"secret"), "{heard:?}");
        }
    }

    /// A server that speaks TLS with this certificate, prints its port and then the requests.
    const SPEAKS_TLS: &str = "
import socket, ssl, sys
at, cert, key = sys.argv[1:]
if at == 'port':
    server = socket.create_server(('127.0.0.1', 0))
    at = server.getsockname()[1]
else:
    server = socket.socket(socket.AF_UNIX)
    server.bind(at)
    server.listen()
print(at, flush=True)
try:
    server.settimeout(2)
    stream, _ = server.accept()
    stream.settimeout(2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    stream = context.wrap_socket(stream, server_side=True)
    print(stream.recv(4096))
    stream.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\n[]')
    stream.close()
except OSError as error:
    print(error)
";

    /// Certificates in a directory: a valid one, one for another name, an expired one. None without `openssl`.
    fn certificates(dir: &Path) -> Option<[&'static str; 3]> {
        let openssl = |words: &str| {
            let mut command = Command::new("openssl");
            command.args(words.split(' ')).current_dir(dir);
            let output = command.output();
            output.is_ok_and(|output| output.status.success())
        };
        let new = "req -x509 -newkey rsa:2048 -nodes -keyout key -days 2";
        let made = openssl(&format!("{new} -subj /CN=localhost -out own"))
            && openssl("x509 -in own -signkey key -days -1 -out over")
            && openssl("req -x509 -key key -days 2 -subj /CN=elsewhere.example -out other");
        made.then_some(["own", "other", "over"])
    }

    /// The kernel identifies a server's owner; a certificate does not change that.
    #[test]
    fn a_false_server_gets_no_token_whatever_certificate_it_shows() {
        let test = "a_false_server_gets_no_token_whatever_certificate_it_shows";
        let (python, nobody) = ("/usr/bin/python3", 65_534);
        let dir = tempfile::tempdir_in("/tmp").expect("made");
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        };
        open(dir.path(), 0o777);
        let (Some(all), true, true) = (
            certificates(dir.path()),
            Path::new(python).exists(),
            nix::unistd::Uid::effective().is_root(),
        ) else {
            println!("skipped: {test} needs root for a second user, openssl and {python}");
            return;
        };
        open(&dir.path().join("key"), 0o644);
        for (own, certificate, file) in [true, false].into_iter().flat_map(|own| {
            let places = all.into_iter().flat_map(|one| [(one, false), (one, true)]);
            places.map(move |(one, file)| (own, one, file))
        }) {
            let sock = dir.path().join(format!("{own}-{certificate}"));
            let at = if file {
                sock.to_str().expect("text")
            } else {
                "port"
            };
            let mut server = Command::new(python);
            server.args(["-c", SPEAKS_TLS, at]);
            server.args([certificate, "key"]).current_dir(dir.path());
            if !own {
                server.uid(nobody).gid(nobody);
            }
            let mut server = server.stdout(Stdio::piped()).spawn().expect("starts");
            let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
            let mut line = || lines.next().expect("a line").expect("text");
            let listens = line();
            let address = match file {
                true => Address::read("http+unix://s/", at, true),
                false => Address::read(&format!("https://localhost:{listens}/"), "", true),
            };
            let patience = Duration::from_secs(2);
            let got = address
                .expect("an address")
                .get("/x", "secret", patience, 4096);
            let heard = line();
            server.wait().expect("ended");
            let what = format!("own {own}, {certificate}, file {file}: {got:?}, {heard}");
            // The user's own process could read the token from the user's files anyway.
            assert_eq!(got.is_ok_and(|body| body == b"[]"), own, "{what}");
            assert_eq!(heard.contains("secret"), own, "{what}");
        }
    }

    #[test]
    fn a_socket_that_takes_nobody_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("made");
        let path = dir.path().join("s");
        let server = UnixListener::bind(&path).expect("bound");
        socket::listen(&server, socket::Backlog::new(1).expect("a number")).expect("set");
        let begun = Instant::now();
        let kept: Vec<_> = (0..4).map(|_| at_file(&path)).collect();
        assert!(kept.iter().any(Result::is_err), "the queue is full");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}
