//! An HTTP client that knows when bytes arrived: ureq, with a stamp on each read of its connection.
//! Not here: what the bytes say.
//!
//! Two events that one read brought have one time of arrival, however long the client then takes to tell them apart: a
//! gap between them would be the client's own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport};

/// Requests over kept connections, one at a time.
pub(super) struct Client {
    pub(super) agent: Agent,
    pub(super) limit: Duration,
    stamp: Arc<Stamp>,
}

/// When the newest bytes arrived, and how many reads brought any.
struct Stamp {
    origin: Instant,
    nanoseconds: AtomicU64,
    reads: AtomicU64,
}

/// One read of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    /// Equal for what one read brought.
    pub(super) read: u64,
}

impl Client {
    /// `limit` holds for each whole request.
    pub(super) fn new(limit: Duration) -> Client {
        let stamp =
            Arc::new(Stamp { origin: Instant::now(), nanoseconds: AtomicU64::new(0), reads: AtomicU64::new(0) });
        // A proxy named by the environment would be measured with the server.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(limit.min(Duration::from_secs(15))))
            .timeout_global(Some(limit))
            .proxy(None)
            .user_agent(concat!("hourglass/", env!("CARGO_PKG_VERSION")))
            .build();
        let connector = DefaultConnector::new().chain(StampConnector { stamp: Arc::clone(&stamp) });
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        Client { agent, limit, stamp }
    }

    /// The newest bytes' arrival.
    pub(super) fn newest(&self) -> Arrival {
        let at = self.stamp.origin + Duration::from_nanos(self.stamp.nanoseconds.load(Ordering::Relaxed));
        Arrival { at, read: self.stamp.reads.load(Ordering::Relaxed) }
    }
}

struct StampConnector {
    stamp: Arc<Stamp>,
}

impl fmt::Debug for StampConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StampConnector")
    }
}

impl<In: Transport> Connector<In> for StampConnector {
    type Out = Stamped<In>;

    fn connect(&self, _: &ConnectionDetails, chained: Option<In>) -> Result<Option<Stamped<In>>, ureq::Error> {
        Ok(chained.map(|inner| Stamped { inner, stamp: Arc::clone(&self.stamp) }))
    }
}

struct Stamped<In> {
    inner: In,
    stamp: Arc<Stamp>,
}

impl<In> fmt::Debug for Stamped<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stamped")
    }
}

impl<In: Transport> Transport for Stamped<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let arrived = self.inner.await_input(timeout)?;
        if arrived {
            let nanoseconds = u64::try_from(self.stamp.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.stamp.nanoseconds.store(nanoseconds, Ordering::Relaxed);
            self.stamp.reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(arrived)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
