//! A bill of materials in the form of CycloneDX 1.5: whoever hears of a hole in a crate finds out whether it is ours, too.

use serde_json::{Value, json};

use crate::Result;
use crate::materials::{Crate, Materials};

/// The bill, as JSON. The same materials make the same bill: there is no time and no random number in it.
///
/// # Errors
/// Where a crate says no licence, or the registry's has no checksum.
pub fn cyclonedx(materials: &Materials) -> Result<String> {
    let components: Result<Vec<Value>> =
        materials.crates.iter().map(|one| component(one, "library", materials)).collect();
    let known = |id: &str| materials.crates.iter().chain([&materials.command]).find(|one| one.id == id);
    let dependencies: Vec<Value> = materials
        .needs
        .iter()
        .filter_map(|(id, needs)| {
            let needs: Vec<String> = needs.iter().filter_map(|id| known(id)).map(purl).collect();
            Some(json!({ "ref": purl(known(id)?), "dependsOn": needs }))
        })
        .collect();
    let bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(&materials.command, "application", materials)? },
        "components": components?,
        "dependencies": dependencies,
    });
    let mut text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    text.push('\n');
    Ok(text)
}

/// What the world calls it.
pub fn purl(one: &Crate) -> String {
    // The version may say `+` for what it was built of.
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

fn component(one: &Crate, kind: &str, materials: &Materials) -> Result<Value> {
    let license = one.license.as_ref().ok_or_else(|| format!("{} says no licence", one.name))?;
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(one),
        "name": one.name,
        "version": one.version,
        "purl": purl(one),
        // Slashes were written in the place of OR, once.
        "licenses": [{ "expression": license.replace('/', " OR ") }],
    });
    if !one.is_ours() {
        let key = (one.name.clone(), one.version.clone());
        let sum = materials.checksums.get(&key).ok_or_else(|| format!("{} has no checksum", one.name))?;
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    if let Some(repository) = &one.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    Ok(component)
}
