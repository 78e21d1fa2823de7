//! From TOML and JSON to a configuration.
//!
//! The keys of a table are split by their owner: those that optimizers share are read as a [`Config`], those of the optimizer as its own
//! options. A key that nobody owns is refused with the list of those that exist.

use crate::config::{Config, Shared, keys};
use crate::error::{Error, Result};
use crate::optim::table::{Optimizers, Row};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

impl Config {
    /// Reads TOML.
    pub fn from_toml(text: &str) -> Result<Config> {
        let table: toml::Table = toml::from_str(text).map_err(|error| Error::ConfigSyntax(error.to_string()))?;
        let name = table.get("name").map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
        let row = row(name.as_deref())?;
        let (mut shared, mut own) = (toml::Table::new(), Map::new());
        for (key, value) in table {
            match owner(&key, &value.to_string(), row)? {
                Owner::All => drop(shared.insert(key, value)),
                Owner::Optimizer => drop(own.insert(key.clone(), json(&key, value)?)),
            }
        }
        let shared = serde_path_to_error::deserialize(toml::Value::Table(shared));
        let shared = shared.map_err(|error| syntax(error.path(), error.inner().message()))?;
        together(shared, own, row)
    }

    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<Config> {
        let table: Unique = serde_json::from_str(text).map_err(|error| Error::ConfigSyntax(error.to_string()))?;
        from_map(table.0)
    }
}

/// Inside of a larger record.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        from_map(Unique::deserialize(deserializer)?.0).map_err(D::Error::custom)
    }
}

fn from_map(table: Map<String, Value>) -> Result<Config> {
    let name = table.get("name").map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    let row = row(name.as_deref())?;
    let (mut shared, mut own) = (Map::new(), Map::new());
    for (key, value) in table {
        match owner(&key, &value.to_string(), row)? {
            Owner::All => drop(shared.insert(key, value)),
            Owner::Optimizer => drop(own.insert(key, value)),
        }
    }
    let shared = serde_path_to_error::deserialize(Value::Object(shared));
    let shared = shared.map_err(|error| syntax(error.path(), &error.inner().to_string()))?;
    together(shared, own, row)
}

fn together(Shared(shared): Shared, own: Map<String, Value>, row: &Row) -> Result<Config> {
    row.check(&own)?;
    Ok(Config { own, ..shared })
}

fn row(name: Option<&str>) -> Result<&'static Row> {
    match name {
        Some(name) => Ok(Optimizers::row(name.parse()?)),
        None => {
            let known = Optimizers::all().iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::ConfigSyntax(format!("name is missing; expected one of {known}")))
        }
    }
}

/// Who knows a key.
enum Owner {
    All,
    Optimizer,
}

fn owner(key: &str, value: &str, row: &Row) -> Result<Owner> {
    let shared = keys::<Shared>();
    if shared.contains(&key) {
        return Ok(Owner::All);
    }
    if row.keys().contains(&key) {
        return Ok(Owner::Optimizer);
    }
    let rows = Optimizers::all();
    let owners = rows.iter().filter(|row| row.keys().contains(&key)).map(|row| row.name.as_str()).collect::<Vec<_>>();
    if !owners.is_empty() {
        return Err(super::check::foreign(key, value, row, &owners));
    }
    let known = || shared.iter().chain(rows.iter().flat_map(|row| row.keys()));
    let likeness = |other: &&&str| (1000.0 * strsim::jaro_winkler(key, other)) as u32;
    let nearest = known().max_by_key(likeness).filter(|nearest| likeness(nearest) > 850);
    let guess = nearest.map_or(String::new(), |nearest| format!(" (did you mean {nearest}?)"));
    let mut listed: Vec<&str> = Vec::new();
    for key in known() {
        if !listed.contains(key) {
            listed.push(key);
        }
    }
    let known = listed.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    Err(Error::ConfigSyntax(format!("{key}: unknown field `{key}`{guess}, expected one of {known}")))
}

/// A value of TOML as JSON has it, which knows no dates and no infinities.
fn json(key: &str, value: toml::Value) -> Result<Value> {
    let shown = value.to_string();
    let refused = || Error::config(key, &shown, "expected a finite number, a text or a list");
    match value {
        toml::Value::Float(number) if !number.is_finite() => Err(refused()),
        toml::Value::Datetime(_) => Err(refused()),
        value => serde_json::to_value(value).map_err(|_| refused()),
    }
}

/// The key, and what is wrong with it.
fn syntax(path: &serde_path_to_error::Path, problem: &str) -> Error {
    match path.to_string().as_str() {
        "." => Error::ConfigSyntax(problem.to_owned()),
        key => Error::ConfigSyntax(format!("{key}: {problem}")),
    }
}

/// A table of JSON in which every key stands once: serde_json would keep the last.
struct Unique(Map<String, Value>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of options, at least name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Unique, A::Error> {
                let mut table = Map::new();
                while let Some((key, value)) = access.next_entry::<String, Value>()? {
                    if table.contains_key(&key) {
                        return Err(A::Error::custom(format!("duplicate field `{key}`")));
                    }
                    table.insert(key, value);
                }
                Ok(Unique(table))
            }
        }

        deserializer.deserialize_map(Table)
    }
}
