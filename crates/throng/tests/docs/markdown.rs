//! Parses a page: its code blocks with their directives, the commands in its text, its headings and links.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The word behind the fence.
    pub language: String,
    pub text: String,
    /// The number of the block's first line of text.
    pub line: usize,
    /// True if only directives stand between this block and the one before.
    pub follows: bool,
}

/// A part of a page that the runner uses.
#[derive(Clone, Debug)]
pub enum Item {
    /// The text of an HTML comment `<!-- test: … -->`, and its line.
    Directive(String, usize),
    Block(Block),
    /// A command in the text: `throng config`.
    Command(String, usize),
}

/// A page.
pub struct Page {
    pub items: Vec<Item>,
    /// The targets of links, with their lines.
    pub links: Vec<(String, usize)>,
    /// The anchors of its headings.
    pub anchors: Vec<String>,
}

/// How commands in the text begin.
const COMMANDS: [&str; 6] = ["cargo ", "throng ", "bench/", "scripts/", "HOLD=", "kill "];

impl Page {
    pub fn read(text: &str) -> Page {
        let line_of = |at: usize| text[..at].matches('\n').count() + 1;
        let mut page = Page { items: Vec::new(), links: Vec::new(), anchors: Vec::new() };
        let (mut block, mut heading, mut follows): (Option<Block>, Option<String>, _) =
            (None, None, false);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = line_of(range.start);
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let CodeBlockKind::Fenced(info) = kind else {
                        panic!("line {line}: an indented block has no language: fence it")
                    };
                    let language = info.split([' ', ',']).next().unwrap_or_default().to_owned();
                    block = Some(Block { language, text: String::new(), line: line + 1, follows });
                }
                Event::End(TagEnd::CodeBlock) => {
                    page.items.extend(block.take().map(Item::Block));
                    follows = true;
                }
                Event::Text(text) => match (&mut block, &mut heading) {
                    (Some(block), _) => block.text.push_str(&text),
                    (None, Some(heading)) => heading.push_str(&text),
                    (None, None) => {}
                },
                Event::Html(html) | Event::InlineHtml(html) => {
                    for comment in html.split("<!--").skip(1) {
                        let comment = comment.split("-->").next().unwrap_or_default().trim();
                        if let Some(directive) = comment.strip_prefix("test:") {
                            page.items.push(Item::Directive(directive.trim().into(), line));
                        }
                    }
                }
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    if COMMANDS.iter().any(|start| code.starts_with(start)) {
                        page.items.push(Item::Command(code.into_string(), line));
                    }
                }
                Event::Start(Tag::Heading { level, .. }) => {
                    assert!(level <= HeadingLevel::H4, "line {line}: headings go down to ####");
                    (heading, follows) = (Some(String::new()), false);
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.push(anchor(&heading.take().unwrap_or_default()));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((dest_url.into_string(), line));
                }
                Event::Start(_) => follows = false,
                _ => {}
            }
        }
        page
    }
}

/// Returns a heading's anchor, as code hosts and mdbook make it.
fn anchor(heading: &str) -> String {
    let persistent = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    persistent.flat_map(char::to_lowercase).collect()
}

#[test]
fn a_page_is_read() {
    let text = "# The `x`: a\n\n<!-- test: stop -->\n```sh\ncurl a\n```\n\n<!-- test: numbers vary -->\n\
                ```json\n{}\n```\n\nSay `throng top`, [here](a.md#b).\n\n```text\nz\n```\n";
    let page = Page::read(text);
    assert_eq!(page.anchors, ["the-x-a"]);
    assert_eq!(page.links, [("a.md#b".to_owned(), 13)]);
    let shown: Vec<String> = page
        .items
        .iter()
        .map(|item| match item {
            Item::Directive(text, line) => format!("{line} {text}"),
            Item::Block(block) => {
                format!("{} {} {:?} {}", block.line, block.language, block.text, block.follows)
            }
            Item::Command(text, line) => format!("{line} {text}"),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "3 stop",
            "5 sh \"curl a\\n\" false",
            "8 numbers vary",
            "10 json \"{}\\n\" true",
            "13 throng top",
            "16 text \"z\\n\" false"
        ]
    );
}
