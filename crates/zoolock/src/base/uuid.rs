//! Random UUIDs, seeded in a simulation.

/// Returns a random UUID.
pub(crate) fn random_uuid() -> uuid::Uuid {
    #[cfg(feature = "simulation")]
    if let Some(random) = crate::base::host::on_host(|host| [host.random(), host.random()]) {
        let [high, low] = random.map(u128::from);
        return uuid::Builder::from_random_bytes((high << 64 | low).to_be_bytes()).into_uuid();
    }
    uuid::Uuid::new_v4()
}
