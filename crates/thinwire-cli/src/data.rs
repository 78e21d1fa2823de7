//! What of the data was read, and what the network does not see of it: told at the start of a run, and in its summary.

use crate::job::{BuiltIn, Job, LONGEST};
use crate::screen::say;
use thinwire_report::Cut;
use thinwire_report::numbers;

/// Files that are named on the terminal; `summary.json` has all.
const SHOWN: usize = 8;

/// The files that the data was read from, as they are called in the folder that was given.
pub fn files(job: &Job) -> Vec<String> {
    let folder = job.spec.data.as_deref().filter(|path| path.is_dir());
    let name = |path: &std::path::PathBuf| {
        let below = folder.and_then(|folder| path.strip_prefix(folder).ok());
        let name = below.or(path.file_name().map(std::path::Path::new)).unwrap_or(path);
        name.display().to_string()
    };
    job.files.iter().map(name).collect()
}

/// What the context is too short for; none for tasks that cut nothing.
pub fn cut(job: &Job) -> Option<Cut> {
    let BuiltIn::BertClassifier(task) = &job.task else { return None };
    let (cut, context) = (task.cut(), job.found.context?);
    Some(Cut { examples: cut.examples, of: cut.of, context, longest: cut.longest })
}

/// Says which files were read, and what is cut.
pub fn announce(job: &Job) {
    let names = files(job);
    if !names.is_empty() {
        say!("data      {}", listed(&names));
    }
    if let Some(cut) = cut(job) {
        say!("{}", sentence(&cut, job.spec.context_was_given(), job.spec.from.is_some()));
    }
}

fn listed(names: &[String]) -> String {
    let (shown, rest) = names.split_at(names.len().min(SHOWN));
    let more =
        if rest.is_empty() { String::new() } else { format!(" and {} more (summary.json lists all)", rest.len()) };
    let count =
        if names.len() == 1 { String::new() } else { format!("{} files: ", numbers::count(names.len() as u64)) };
    format!("{count}{}{more}", shown.join(", "))
}

/// `pretrained`: the run begins with the parameters of another, whose context is this one's.
fn sentence(cut: &Cut, given: bool, pretrained: bool) -> String {
    let Cut { examples, of, context, longest } = *cut;
    if examples == 0 {
        return format!(
            "context   {context} tokens: all {} examples fit, the longest has {longest}",
            numbers::count(of as u64)
        );
    }
    let instead = match (given, pretrained) {
        (_, true) => "it is that of the pre-trained network; pre-train with a longer --context to keep them".to_owned(),
        (true, _) => "a longer --context keeps them".to_owned(),
        (false, false) => format!("{LONGEST} is the longest that is chosen by itself; a longer --context keeps them"),
    };
    format!(
        "warning: {} of {} examples are longer than the context of {context} tokens (up to {longest}) and lose their end: {instead}",
        numbers::count(examples as u64),
        numbers::count(of as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_are_not_all_named() {
        let names = |count: usize| (0..count).map(|i| format!("{i}.txt")).collect::<Vec<_>>();
        assert_eq!(listed(&names(1)), "0.txt");
        assert_eq!(listed(&names(2)), "2 files: 0.txt, 1.txt");
        assert!(listed(&names(20)).ends_with("7.txt and 12 more (summary.json lists all)"));
    }
}
