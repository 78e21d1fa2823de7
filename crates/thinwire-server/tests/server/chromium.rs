//! A headless Chromium, spoken with over its pipe: JSON messages of the DevTools protocol, a NUL after each.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// What `check` sets where the test must run.
const MUST: &str = "THINWIRE_BROWSER";

pub struct Chromium {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    sent: u64,
    session: Value,
    /// What the page complained of.
    pub complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Chromium {
    /// None, and a line that says so, if there is no Chromium here and none is asked for.
    pub fn open(url: &str) -> Option<Chromium> {
        let asked = std::env::var(MUST).ok();
        let works = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        let Some(program) = asked.as_deref().or_else(|| NAMES.iter().copied().find(|name| works(name))) else {
            println!("not run: there is no Chromium here");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // It reads at descriptor 3 and writes at 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--remote-debugging-pipe", &format!("--user-data-dir={}", profile.path().display())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (session, complaints) = (Value::Null, Vec::new());
        let mut browser = Chromium { child, to, from, sent: 0, session, complaints, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attach = json!({ "targetId": target, "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(domain, json!({}));
        }
        browser.call("Page.navigate", json!({ "url": url }));
        browser.wait_for("document.readyState", |state| state == "complete");
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "Chromium has ended");
            let heard = serde_json::from_slice::<Value>(&bytes).unwrap();
            if heard["id"] == self.sent {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].clone();
            }
            self.note(&heard);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let complains = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind)
            }
            Some("Log.entryAdded") => ["error", "warning"].iter().any(|level| params["entry"]["level"] == *level),
            _ => false,
        };
        if complains {
            self.complaints.push(params.to_string());
        }
    }

    /// What a JavaScript expression gives on the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Looks until the expression gives something that is wanted.
    pub fn wait_for(&mut self, expression: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = self.evaluate(expression);
            if wanted(&seen) {
                return seen;
            }
            assert!(Instant::now() < until, "{expression} is still {seen}\n{}", self.complaints.join("\n"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
