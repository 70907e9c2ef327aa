//! The server that the flags of `zoolock serve` describe.

use std::path::Path;

use zoolock_server::{Builder, ClientCertificates, Durability, Limits, Server, TlsConfig, Users};

use crate::args::{DurabilityArg, ServeArgs, TlsArgs, TlsClients};
use crate::base::duration::format_duration;
use crate::base::exit::Failure;
use crate::base::memory::{LEAST_MEMORY, available_memory};
use crate::plan::credentials::{MAX_PEM_FILE, open_for_flag, read_private_file};

/// Maximum size of the file with accounts, in bytes.
const MAX_USERS_FILE: u64 = 16 << 20;

impl ServeArgs {
    /// Checks the flags, and returns the server that they describe.
    pub(super) fn builder(&self) -> Result<Builder, Failure> {
        let tick = self.limits.tick;
        let mut builder = Server::builder()
            .owns_runtime()
            .tick(tick)
            .max_connections_per_address(self.limits.max_connections_per_address);
        builder = match self.listen {
            Some(listen) => builder.listen(listen),
            None => builder.tls_only(),
        };
        if let Some(listen) = self.tls.tls_listen {
            builder = builder.tls(listen, tls(&self.tls)?);
        }
        let (min, max) = (self.limits.min_session_timeout, self.limits.max_session_timeout);
        let (shortest, longest) =
            (min.unwrap_or(tick.saturating_mul(2)), max.unwrap_or(tick.saturating_mul(20)));
        if max.is_some() && shortest > longest {
            return Err(Failure::usage(format!(
                "--max-session-timeout {}: is below the shortest one, {}; lower --min-session-timeout or --tick",
                format_duration(longest),
                format_duration(shortest)
            )));
        }
        let memory = available_memory();
        if memory < LEAST_MEMORY {
            return Err(Failure::unavailable(format!(
                "a server needs 64 MiB of memory, and may use {} MiB here; raise the limit of the control group (MemoryMax) or \
                 of the process (ulimit -d) to 64 MiB, and that of its address space (ulimit -v) to 512 MiB",
                memory >> 20
            )));
        }
        builder = builder.limits(Limits { min_session_timeout: min, ..Limits::for_memory(memory) });
        builder = max.into_iter().fold(builder, Builder::max_session_timeout);
        if let Some(listen) = self.operation.metrics {
            builder = builder.metrics(listen);
        }
        if let Some(words) = &self.operation.words {
            builder = builder.words(words.iter().copied());
        }
        if let Some(path) = &self.access.users {
            builder = builder.users(read_users(path)?);
        }
        if let Some(path) = &self.access.super_digest_file {
            let text = read_private_file("--super-digest-file", path, 4096)?;
            let text = str::from_utf8(&text)
                .ok()
                .filter(|text| Users::parse(text).is_ok_and(|users| users.len() == 1));
            let text = text.ok_or_else(|| {
                Failure::usage(format!(
                    "--super-digest-file: {} must hold one line, USER:HASH; see `zoolock serve --help`",
                    path.display()
                ))
            })?;
            builder = builder.super_digest(text.trim());
        }
        if self.access.require_auth {
            let certificates =
                self.tls.tls_client_ca.is_some() && self.tls.tls_clients != Some(TlsClients::None);
            if self.access.users.is_none() && !certificates {
                return Err(Failure::usage(
                    "--require-auth: no client could authenticate; give --users FILE, or --tls-client-ca FILE",
                ));
            }
            builder = builder.require_auth();
        }
        if self.recover.is_some() && self.durability == DurabilityArg::Memory {
            return Err(Failure::usage(
                "--recover has no effect with --durability memory, which keeps no log",
            ));
        }
        if let Some(data) = &self.data {
            builder = builder.data_dir(data).durability(match self.durability {
                DurabilityArg::Sync => Durability::Sync,
                DurabilityArg::Memory => Durability::Memory,
            });
        }
        Ok(builder)
    }
}

fn tls(args: &TlsArgs) -> Result<TlsConfig, Failure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Err(Failure::usage("--tls-listen goes with --tls-cert FILE and --tls-key FILE"));
    };
    // The server reads the files when it starts.
    let authorities = args.tls_client_ca.as_ref().map(|path| ("--tls-client-ca", path));
    for (flag, path) in [("--tls-cert", certificate), ("--tls-key", key)].into_iter().chain(authorities) {
        open_for_flag(flag, path, MAX_PEM_FILE)?;
    }
    let config = TlsConfig::new(certificate, key);
    let Some(authorities) = &args.tls_client_ca else { return Ok(config) };
    let clients = match args.tls_clients {
        Some(TlsClients::None) => ClientCertificates::None,
        Some(TlsClients::Optional) => ClientCertificates::Optional,
        Some(TlsClients::Required) | None => ClientCertificates::Required,
    };
    Ok(config.client_ca(authorities, clients))
}

fn read_users(path: &Path) -> Result<Users, Failure> {
    let text = read_private_file("--users", path, MAX_USERS_FILE)?;
    let text = str::from_utf8(&text)
        .map_err(|_| Failure::usage(format!("--users: {} is not UTF-8 text", path.display())))?;
    let users = Users::parse(text).map_err(|line| {
        Failure::usage(format!(
            "--users: line {line} of {} is not USER:HASH; see `zoolock serve --help`",
            path.display()
        ))
    })?;
    if users.is_empty() {
        return Err(Failure::usage(format!("--users: there is no account in {}", path.display())));
    }
    Ok(users)
}
