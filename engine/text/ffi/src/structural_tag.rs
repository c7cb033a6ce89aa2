//! {"structures": [{"begin", "schema", "end"}], "triggers": [...]}: any text, but where a trigger
//! has come one of the structures that begin with it follows.

use serde_json::Value;

use crate::lark_text::quoted;
use crate::schema_policy::SchemaPolicy;

const MAX_ENTRIES: usize = 128;

fn entries<'a>(value: &'a Value, name: &str) -> Result<&'a [Value], String> {
    let list = value.get(name).and_then(Value::as_array).ok_or(format!("{name} is not a list"))?;
    if list.is_empty() || list.len() > MAX_ENTRIES {
        return Err(format!("{name} has {} entries; 1 to {MAX_ENTRIES} are allowed", list.len()));
    }
    Ok(list)
}

fn check_members(value: &Value, known: &[&str], path: &str) -> Result<(), String> {
    let object = value.as_object().ok_or(format!("{path} is not an object"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{path} has the member '{key}'; allowed are {known:?}")),
        None => Ok(()),
    }
}

fn text_of<'a>(value: &'a Value, path: &str) -> Result<&'a str, String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.ok_or(format!("{path} is not a string with text"))
}

fn pattern_of(text: &str) -> String {
    text.chars().map(|c| format!("\\x{{{:X}}}", u32::from(c))).collect()
}

pub fn to_lark(tag: &Value, policy: &SchemaPolicy) -> Result<String, String> {
    check_members(tag, &["type", "structures", "triggers"], "the structural tag")?;
    let mut triggers = Vec::new();
    for (i, trigger) in entries(tag, "triggers")?.iter().enumerate() {
        triggers.push(text_of(trigger, &format!("triggers[{i}]"))?);
    }
    let mut bodies: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
    let mut rules = String::new();
    for (i, structure) in entries(tag, "structures")?.iter().enumerate() {
        let path = format!("structures[{i}]");
        check_members(structure, &["begin", "schema", "end"], &path)?;
        let begin = text_of(&structure["begin"], &format!("{path}.begin"))?;
        let end = text_of(&structure["end"], &format!("{path}.end"))?;
        let matching = triggers.iter().position(|trigger| begin.starts_with(trigger));
        let trigger = matching.ok_or(format!("{path}.begin begins with none of the triggers"))?;
        let schema = structure.get("schema").ok_or(format!("{path}.schema is missing"))?;
        let schema = policy.apply(schema).map_err(|e| format!("{path}.schema: {e}"))?;
        let rest = &begin[triggers[trigger].len()..];
        let rest = if rest.is_empty() { String::new() } else { quoted(rest) };
        rules.push_str(&format!("body_{i}: {rest} %json {schema} {}\n", quoted(end)));
        bodies[trigger].push(format!("body_{i}"));
    }
    let mut tags = Vec::new();
    let mut no_trigger = String::from("/(?s:.+)/");
    for (i, trigger) in triggers.iter().enumerate() {
        if bodies[i].is_empty() {
            return Err(format!("triggers[{i}] begins no structure"));
        }
        rules.push_str(&format!("head_{i}[lazy]: /(?s:.*){}/\n", pattern_of(trigger)));
        no_trigger.push_str(&format!(" & ~/(?s:.*){}(?s:.*)/", pattern_of(trigger)));
        tags.push(format!("head_{i} ( {} )", bodies[i].join(" | ")));
    }
    Ok(format!("start: ( {} )* TAIL?\nTAIL: {no_trigger}\n{rules}", tags.join(" | ")))
}
