//! The verdict: the line that says whether a run passed.

use std::fmt::Write as _;

use super::html::Escaped;
use super::number::grouped;
use crate::record::Summary;

/// The grade of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grade {
    /// No check failed.
    Good,
    /// The run was stopped early, or no message arrived that could be checked.
    Unsure,
    /// Messages were lost, connections closed, or requests rejected.
    Bad,
}

/// One statement of the verdict. `good` is the result of its check, if it has one.
struct Clause {
    text: String,
    good: Option<bool>,
}

/// Returns the verdict as an HTML block. It is good only if all connections opened and no check
/// failed.
pub fn html(summary: &Summary) -> String {
    let clauses = clauses(summary);
    let (class, mark, word) = match grade(summary, &clauses) {
        Grade::Good => ("good", "<path d=\"M7.5 12.5l3 3 6-6.5\"/>", "Passed"),
        Grade::Unsure => ("unsure", "<path d=\"M12 7v6M12 16.5v.1\"/>", "Incomplete"),
        Grade::Bad => ("bad", "<path d=\"M9 9l6 6M15 9l-6 6\"/>", "Not clean"),
    };
    let mut out = format!(
        "<div class=\"verdict {class}\"><svg viewBox=\"0 0 24 24\" role=\"img\" \
         aria-label=\"{word}\"><circle cx=\"12\" cy=\"12\" r=\"10.5\"/>{mark}</svg><p>"
    );
    for (index, clause) in clauses.iter().enumerate() {
        let class = match clause.good {
            None => "",
            Some(true) => " class=\"ok\"",
            Some(false) => " class=\"not\"",
        };
        let between = if index == 0 { "" } else { "; " };
        let _ = write!(out, "{between}<span{class}>{}</span>", Escaped(&clause.text));
    }
    out.push_str("</p></div>\n");
    out
}

fn grade(summary: &Summary, clauses: &[Clause]) -> Grade {
    let nothing_came = summary.counts.opened == 0
        || (summary.counts.published > 0 && summary.counts.messages == 0);
    if clauses.iter().any(|clause| clause.good == Some(false)) {
        Grade::Bad
    } else if summary.interrupted || nothing_came {
        Grade::Unsure
    } else {
        Grade::Good
    }
}

fn clauses(summary: &Summary) -> Vec<Clause> {
    let counts = &summary.counts;
    let zero = |count: u64, what: &str| Clause {
        text: format!("{} {what}", grouped(count)),
        good: Some(count == 0),
    };
    let plain = |text: String| Clause { text, good: None };
    let mut clauses = Vec::new();
    if counts.opened < summary.connections {
        let (opened, planned) = (grouped(counts.opened), grouped(summary.connections));
        let text =
            format!("{opened} of {planned} connections opened, {} open", grouped(counts.open));
        // A run that was stopped early has not tried all connections, so this is no error there.
        clauses.push(Clause { text, good: (!summary.interrupted).then_some(false) });
    } else {
        clauses.push(plain(format!("{} connections open", grouped(counts.open))));
    }
    clauses.push(plain(format!("{} messages received", grouped(counts.messages))));
    clauses.push(zero(counts.lost, "lost"));
    clauses.push(zero(counts.duplicated, "duplicated"));
    clauses.push(zero(counts.out_of_order, "out of order"));
    let closed = zero(counts.closed, "closed by the server");
    // A connection that recovers may be closed, and may need a second attempt.
    clauses.push(if summary.recover { plain(closed.text) } else { closed });
    if summary.recover {
        clauses.push(plain(format!("{} cut", grouped(counts.cuts))));
        clauses.push(plain(format!("{} messages caught up", grouped(counts.caught_up))));
        let open = grouped(counts.open);
        let back = Clause { text: format!("{open} open at the end"), good: Some(false) };
        clauses.extend((counts.open < summary.connections).then_some(back));
    }
    // Zeros are left out here, so that the line stays short.
    for (count, what) in [
        (counts.strayed, "delivered to a wrong connection"),
        (counts.failed * u64::from(!summary.recover), "attempts to connect failed"),
        (counts.not_recovered, "times not recovered"),
        (counts.ack_failed, "acknowledgements failed"),
        (counts.publish_failed, "publishes failed"),
        (counts.probes_failed, "probes failed"),
    ] {
        if count > 0 {
            clauses.push(zero(count, what));
        }
    }
    for agent in summary.agents.iter().filter(|agent| agent.lost.is_some()) {
        let connections = grouped(agent.connections);
        let text = format!("agent {} lost with {connections} connections", agent.agent);
        clauses.push(Clause { text, good: Some(false) });
    }
    // The counters cover the whole host: they explain a run, but are no check of it.
    let sentences = summary.kernels.iter().flat_map(|host| host.sentences());
    clauses.extend(sentences.map(plain));
    if summary.interrupted {
        clauses.push(plain("stopped before its end".to_owned()));
    }
    clauses
}

#[cfg(test)]
mod tests {
    use kernel::{Finding, FindingKind};

    use super::*;
    use crate::kernels::HostFindings;
    use crate::record::{Agent, Counts};

    fn of(counts: Counts, interrupted: bool) -> String {
        html(&Summary { connections: 1_000, counts, interrupted, ..Summary::default() })
    }

    fn clean() -> Counts {
        Counts { open: 1_000, opened: 1_000, messages: 5_000, ..Counts::default() }
    }

    #[test]
    fn a_clean_run_is_good() {
        let html = of(clean(), false);
        assert!(html.contains("verdict good"));
        assert!(html.contains("1,000 connections open</span>; <span>5,000 messages received"));
        assert!(html.contains("<span class=\"ok\">0 lost</span>"));
    }

    #[test]
    fn a_lost_agent_makes_the_run_bad() {
        let agent =
            |lost| Agent { agent: "<b>:1".into(), connections: 10, lost, ..Agent::default() };
        let with = |lost| {
            let agents = vec![agent(None), agent(lost)];
            html(&Summary { connections: 1_000, counts: clean(), agents, ..Summary::default() })
        };
        assert!(with(None).contains("verdict good"));
        let html = with(Some("gone".into()));
        assert!(html.contains("verdict bad") && html.contains("agent &lt;b&gt;:1 lost"), "{html}");
    }

    #[test]
    fn findings_about_a_kernel_are_shown_and_make_no_run_bad() {
        let finding = Finding {
            kind: FindingKind::ListenOverflows,
            what: "the kernel dropped 312 attempts to connect".into(),
            advice: "raise net.core.somaxconn".into(),
            seconds_ago: None,
        };
        let host = "server <a>".into();
        let kernels = vec![HostFindings { host, kernel_id: None, findings: vec![finding] }];
        let summary =
            Summary { connections: 1_000, counts: clean(), kernels, ..Summary::default() };
        let html = html(&summary);
        let want = "<span>server &lt;a&gt;: the kernel dropped 312 attempts to connect: raise \
                    net.core.somaxconn</span>";
        assert!(html.contains("verdict good") && html.contains(want), "{html}");
    }

    #[test]
    fn any_failed_check_makes_the_run_bad() {
        for counts in [
            Counts { lost: 1, ..clean() },
            Counts { duplicated: 1, ..clean() },
            Counts { out_of_order: 1, ..clean() },
            Counts { strayed: 1, ..clean() },
            Counts { closed: 1, ..clean() },
            Counts { failed: 1, ..clean() },
            Counts { not_recovered: 1, ..clean() },
            Counts { ack_failed: 1, ..clean() },
            Counts { publish_failed: 1, ..clean() },
            Counts { probes_failed: 1, ..clean() },
            Counts { opened: 999, ..clean() },
        ] {
            let html = of(counts, false);
            assert!(html.contains("verdict bad") && html.contains("class=\"not\""), "{html}");
        }
    }

    #[test]
    fn a_recovering_run_may_have_closed_connections() {
        let of = |open| {
            let counts = Counts { open, closed: 3, failed: 2, cuts: 5, ..clean() };
            html(&Summary { connections: 1_000, counts, recover: true, ..Summary::default() })
        };
        assert!(of(1_000).contains("verdict good") && of(1_000).contains("5 cut"));
        assert!(of(999).contains("verdict bad"));
    }

    #[test]
    fn a_run_without_checkable_results_is_unsure() {
        let few = Counts { open: 10, opened: 10, ..Counts::default() };
        assert!(of(few, true).contains("verdict unsure"));
        assert!(of(Counts { published: 3, messages: 0, ..clean() }, false).contains("unsure"));
        assert!(html(&Summary::default()).contains("verdict unsure"));
    }
}
