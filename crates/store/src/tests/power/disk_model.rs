//! A disk with a volatile cache. After a loss of power it may have any part of the writes since the last sync, in any
//! order: each sector of 512 bytes has its content as of any of these writes, one sector may be torn at any byte, a
//! file may have any length that it had since, and each entry of a directory may be new or old.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use random::Random;

use super::trace::Event;

pub const SECTOR: usize = 512;

/// The content of a sector after one of the writes to it.
type Version = (u64, Box<[u8; SECTOR]>);

/// A file system at one moment: each file's content, or `None` for a directory.
pub type Image = BTreeMap<PathBuf, Option<FileImage>>;

/// A file without the zeros at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileImage {
    pub bytes: Vec<u8>,
    pub len: u64,
}

#[derive(Clone, Default)]
struct Node {
    is_dir: bool,
    /// The content for programs.
    cached: FileImage,
    stored: FileImage,
    /// The contents of sectors since the last sync, the oldest first.
    dirty: BTreeMap<usize, Vec<Version>>,
    /// The lengths since the last sync, the oldest first.
    lengths: Vec<(u64, u64)>,
}

/// A change of a directory that is not on the disk yet.
#[derive(Clone)]
struct EntryChange {
    at: u64,
    removed: Option<PathBuf>,
    added: Option<(PathBuf, usize)>,
}

/// The part of the volatile cache that survives a loss of power.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    /// All changes up to this one, and a part of the next.
    Until(u64),
    /// Any version of each sector, length and entry; one time in so many the newest.
    Any(u64),
    /// Everything but one sector of each file.
    AllButOne,
    /// One sector of each file.
    OnlyOne,
}

#[derive(Clone, Default)]
pub struct Disk {
    nodes: Vec<Node>,
    /// The names for programs.
    names: BTreeMap<PathBuf, usize>,
    stored_names: BTreeMap<PathBuf, usize>,
    entry_changes: BTreeMap<PathBuf, Vec<EntryChange>>,
    /// The number of changes so far.
    at: u64,
}

impl FileImage {
    fn sector(&self, number: usize) -> Box<[u8; SECTOR]> {
        let mut out = Box::new([0; SECTOR]);
        let from = (number * SECTOR).min(self.bytes.len());
        let to = (from + SECTOR).min(self.bytes.len());
        out[..to - from].copy_from_slice(&self.bytes[from..to]);
        out
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    fn set_len(&mut self, len: u64) {
        self.len = len;
        self.bytes.truncate(len as usize);
    }
}

impl Node {
    fn write(&mut self, at: u64, offset: u64, bytes: &[u8]) {
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        self.cached.put(from, bytes);
        if self.cached.len < to as u64 {
            self.cached.len = to as u64;
            self.lengths.push((at, to as u64));
        }
        for number in from / SECTOR..to.div_ceil(SECTOR) {
            self.dirty.entry(number).or_default().push((at, self.cached.sector(number)));
        }
    }

    fn set_len(&mut self, at: u64, len: u64) {
        if len < self.cached.len {
            // Data behind the end is gone. If the file grows again, it has zeros there.
            let first = (len as usize).div_ceil(SECTOR);
            self.dirty.split_off(&first);
            let stored = self.stored.bytes.len().div_ceil(SECTOR);
            for number in first..stored {
                self.dirty.entry(number).or_default().push((at, Box::new([0; SECTOR])));
            }
        }
        self.cached.set_len(len);
        self.lengths.push((at, len));
    }

    fn sync(&mut self) {
        for (number, versions) in std::mem::take(&mut self.dirty) {
            if let Some((_, bytes)) = versions.last() {
                self.stored.put(number * SECTOR, &bytes[..]);
            }
        }
        self.lengths.clear();
        self.stored.set_len(self.cached.len);
    }

    /// Fails a sync: the disk gets a part of the writes, and the cache counts all of them as written.
    fn fail_sync(&mut self, random: &mut Random) {
        for (number, versions) in std::mem::take(&mut self.dirty) {
            if let Some((_, bytes)) = versions.last().filter(|_| random.one_in(3)) {
                self.stored.put(number * SECTOR, &bytes[..]);
            }
        }
    }

    fn first_change(&self) -> Option<u64> {
        let writes = self.dirty.values().filter_map(|versions| versions.first());
        writes.map(|(at, _)| *at).chain(self.lengths.first().map(|(at, _)| *at)).min()
    }

    fn cut(&self, survival: Survival, random: &mut Random) -> FileImage {
        let mut image = self.stored.clone();
        let chosen = random.below(self.dirty.len());
        for (index, (number, versions)) in self.dirty.iter().enumerate() {
            let count = match survival {
                Survival::Nothing => 0,
                Survival::Everything => versions.len(),
                Survival::Until(last) => versions.iter().filter(|(at, _)| *at <= last).count(),
                Survival::Any(newest) if random.one_in(newest) => versions.len(),
                Survival::Any(_) => random.below(versions.len() + 1),
                Survival::AllButOne if index == chosen => random.below(versions.len()),
                Survival::OnlyOne if index != chosen => 0,
                Survival::AllButOne | Survival::OnlyOne => versions.len(),
            };
            if let Some((_, bytes)) = count.checked_sub(1).and_then(|last| versions.get(last)) {
                image.put(number * SECTOR, &bytes[..]);
            }
            // One sector is being written when the power goes.
            let is_next = match survival {
                Survival::Until(last) => versions.get(count).is_some_and(|(at, _)| *at == last + 1),
                _ => index == chosen && random.one_in(2),
            };
            if let Some((_, bytes)) = versions.get(count).filter(|_| is_next) {
                image.put(number * SECTOR, &bytes[..random.below(SECTOR)]);
            }
        }
        let lengths = match survival {
            Survival::Nothing => 0,
            Survival::Everything => self.lengths.len(),
            Survival::Until(last) => self.lengths.iter().filter(|(at, _)| *at <= last).count(),
            _ => random.below(self.lengths.len() + 1),
        };
        let len = lengths.checked_sub(1).map_or(self.stored.len, |last| self.lengths[last].1);
        image.set_len(len);
        image
    }
}

impl Disk {
    /// Makes a disk with this image.
    pub fn new(image: &Image) -> Self {
        let mut disk = Disk::default();
        for (path, file) in image {
            let stored = file.clone().unwrap_or_default();
            let node =
                Node { is_dir: file.is_none(), cached: stored.clone(), stored, ..Node::default() };
            disk.nodes.push(node);
            disk.names.insert(path.clone(), disk.nodes.len() - 1);
        }
        disk.stored_names.clone_from(&disk.names);
        disk
    }

    fn add(&mut self, path: &Path, is_dir: bool) {
        if self.names.contains_key(path) {
            return;
        }
        self.nodes.push(Node { is_dir, ..Node::default() });
        self.enter(None, Some((path.into(), self.nodes.len() - 1)));
    }

    fn enter(&mut self, removed: Option<PathBuf>, added: Option<(PathBuf, usize)>) {
        let path = removed.as_deref().or(added.as_ref().map(|(path, _)| path.as_path()));
        let parent = path.and_then(Path::parent).unwrap_or(Path::new("")).to_path_buf();
        let change = EntryChange { at: self.at, removed, added };
        change.apply(&mut self.names);
        self.entry_changes.entry(parent).or_default().push(change);
    }

    fn node(&mut self, path: &Path) -> &mut Node {
        let number =
            self.names.get(path).unwrap_or_else(|| panic!("{} is not there", path.display()));
        &mut self.nodes[*number]
    }

    /// Applies a change to the disk, whose paths begin with `root`.
    pub fn apply(&mut self, root: &Path, event: &Event, random: &mut Random) {
        self.at += 1;
        let at = self.at;
        let inside = |path: &Path| path.strip_prefix(root).unwrap().to_path_buf();
        match event {
            Event::CreateDir(path) => self.add(&inside(path), true),
            Event::Create(path) => self.add(&inside(path), false),
            Event::Write(path, offset, bytes) => {
                self.node(&inside(path)).write(at, *offset, bytes);
            }
            Event::SetLen(path, len) => self.node(&inside(path)).set_len(at, *len),
            Event::Sync(path) => self.node(&inside(path)).sync(),
            Event::SyncFailed(path) => self.node(&inside(path)).fail_sync(random),
            Event::SyncDir(path) => {
                for change in self.entry_changes.remove(&inside(path)).unwrap_or_default() {
                    change.apply(&mut self.stored_names);
                }
            }
            Event::Rename(from, to) => {
                let (from, to) = (inside(from), inside(to));
                let number = self.names[&from];
                self.enter(Some(from), Some((to, number)));
            }
            Event::Remove(path) => self.enter(Some(inside(path)), None),
            Event::Issued(..)
            | Event::Acknowledged(_)
            | Event::Resolved { .. }
            | Event::Opened { .. }
            | Event::Copied(_)
            | Event::Restoring { .. }
            | Event::Restored => {}
        }
    }

    /// Returns the content for programs.
    pub fn cached(&self) -> Image {
        let file = |number: &usize| {
            let node = &self.nodes[*number];
            (!node.is_dir).then(|| node.cached.clone())
        };
        self.names.iter().map(|(path, number)| (path.clone(), file(number))).collect()
    }

    /// Returns the content of the disk if the power goes now.
    pub fn cut(&self, random: &mut Random) -> Image {
        let survival = match random.below(9) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2..=3 => {
                let entries = self.entry_changes.values().flatten().map(|change| change.at);
                let first = self.nodes.iter().filter_map(Node::first_change).chain(entries).min();
                let first = first.unwrap_or(self.at).saturating_sub(1);
                Survival::Until(first + random.below(self.at - first + 1))
            }
            4 => Survival::Any(20),
            5 => Survival::Any(2),
            6 => Survival::Any(1),
            7 => Survival::AllButOne,
            _ => Survival::OnlyOne,
        };
        let mut names = self.stored_names.clone();
        for change in self.entry_changes.values().flatten() {
            let survives = match survival {
                Survival::Nothing => false,
                Survival::Everything => true,
                Survival::Until(last) => change.at <= last,
                _ => random.one_in(2),
            };
            if survives {
                change.apply(&mut names);
            }
        }
        let mut image = Image::new();
        for (path, number) in &names {
            let mut above = path.ancestors().skip(1).filter(|above| *above != Path::new(""));
            if above.all(|above| names.contains_key(above)) {
                let node = &self.nodes[*number];
                image.insert(path.clone(), (!node.is_dir).then(|| node.cut(survival, random)));
            }
        }
        image
    }
}

impl EntryChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((path, number)) = &self.added {
            names.insert(path.clone(), *number);
        }
    }
}

/// Writes an image into an empty directory.
pub fn write_image(image: &Image, root: &Path) {
    for (path, file) in image {
        let path = root.join(path);
        match file {
            None => std::fs::create_dir(&path).unwrap(),
            Some(FileImage { bytes, len }) => {
                std::fs::write(&path, bytes).unwrap();
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_len(*len).unwrap();
            }
        }
    }
}
