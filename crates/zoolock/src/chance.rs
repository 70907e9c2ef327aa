//! Names that nobody else has.

/// A fresh UUID.
pub(crate) fn uuid() -> uuid::Uuid {
    #[cfg(feature = "simulation")]
    if let Some(random) = crate::sim::on_host(|host| host.random()) {
        return uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    }
    uuid::Uuid::new_v4()
}
