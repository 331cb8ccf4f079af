//! Findings of the engine's half of a check or scrub, in the words of the catalogue.

use types::{ClientId, Ino, Lsn, MetaBlock, ShardId};

use super::problem::{Problem, ProblemKind, Subject};
use engine::check::Finding;
use engine::format::blob::{BlobKind, BlobOwner};
use engine::format::reply::reply_owner;

impl Problem {
    /// What the engine has found; `None` if another finding says it already.
    pub(crate) fn of(finding: &Finding) -> Option<Problem> {
        let (kind, subject, detail) = match finding {
            Finding::DamagedLabel(what) => {
                (ProblemKind::DamagedLabel, Subject::Block(MetaBlock(0)), what.clone())
            }
            Finding::DamagedJournal(what) => {
                (ProblemKind::DamagedJournal, Subject::Log(Lsn(0)), what.clone())
            }
            Finding::Damaged(block, what) => {
                (ProblemKind::DamagedBlock, Subject::Block(*block), what.to_string())
            }
            Finding::Unreadable => {
                (ProblemKind::DamagedBlock, Subject::Whole, "unreadable".to_owned())
            }
            Finding::Outside(first, what) => {
                (ProblemKind::OutsideMetaBlock, Subject::Block(*first), what.clone())
            }
            Finding::Shared(taken, what) => {
                let one = taken.first().copied().unwrap_or_default();
                (ProblemKind::SharedMetaBlock, Subject::Block(one), what.clone())
            }
            Finding::WrongBlob(whose, block, mismatch) => {
                let detail = format!("metadata block {block}: {mismatch}");
                (ProblemKind::WrongBlob, subject(*whose), detail)
            }
            of_clients => return Problem::of_clients(of_clients),
        };
        Some(Problem { kind, subject, detail })
    }

    fn of_clients(finding: &Finding) -> Option<Problem> {
        let (kind, subject, detail) = match finding {
            Finding::ForeignClient(client, here) => {
                let detail = foreign(client.shard(), "in the table of clients", *here);
                (ProblemKind::ForeignNumber, Subject::Client(*client), detail)
            }
            Finding::UnissuedClient(client) => {
                let detail = "number not issued".to_owned();
                (ProblemKind::BadCounter, Subject::Client(*client), detail)
            }
            Finding::BadDescription(client) => {
                (ProblemKind::BadRecord, Subject::Client(*client), "description".to_owned())
            }
            Finding::StrayReply(key) => {
                let client = reply_owner(key);
                (ProblemKind::UnknownClient, Subject::Client(client), "kept reply".to_owned())
            }
            Finding::BadReplies(block) => {
                (ProblemKind::BadRecord, Subject::Block(*block), "kept reply".to_owned())
            }
            Finding::BadSetting(key) => {
                (ProblemKind::BadRecord, Subject::Setting(*key), String::new())
            }
            _ => return None,
        };
        Some(Problem { kind, subject, detail })
    }
}

/// Detail of a number that another shard issued.
pub(super) fn foreign(shard: ShardId, place: impl std::fmt::Display, here: ShardId) -> String {
    format!("of shard {shard}, {place}; this is shard {here}")
}

/// The subject of findings about a blob of this owner.
pub(super) fn subject(whose: BlobOwner) -> Subject {
    match whose.kind() {
        BlobKind::Client => Subject::Client(ClientId(whose.number())),
        _ => Subject::Inode(Ino(whose.number())),
    }
}
