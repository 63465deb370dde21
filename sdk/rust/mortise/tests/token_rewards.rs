//! A reward of tokens: the pack declares it in table and note, and each row's tokens are its own.
use mortise::testing::{Plugin, Row};

// Called as a word of the crate is, which pack! must not mind.
struct Raw {
    last: f64,
}

impl mortise::Reward for Raw {
    const TOKEN_REWARDS: bool = true;
    fn new(params: &mortise::Params) -> mortise::Result<Self> {
        Ok(Raw { last: params.f64("last")? })
    }
    fn score(&self, row: &mortise::Row) -> mortise::Result<Option<f64>> {
        for (t, id) in row.completion_ids().iter().enumerate() {
            row.reward_token(t, *id as f32 / 4.0);
        }
        if row.completion() == "outside" {
            row.reward_token(row.completion_ids().len(), 1.0);
        }
        Ok(Some(self.last))
    }
}

mortise::pack! {
    id: "test.steps",
    reward "steps": Raw, "a quarter of each id",
    params: [last: f64 = 0.5, "reward of the row"]
}

#[test]
fn tokens_get_their_own() {
    let mut plugin = Plugin::open(pack(), &[]).unwrap();
    let row = |completion| Row { prompt: "", completion, columns: &[] };
    let (rewards, tokens) = plugin.score_tokens(&[row("a"), row("outside"), row("b")], 3).unwrap();
    assert_eq!(rewards, [Some(0.5), None, Some(0.5)]);
    assert_eq!(tokens[0], [0.0, 0.25, 0.5]);
    assert_eq!(tokens[2], [0.0, 0.25, 0.5]);
    assert!(plugin.failed_rows()[0].1.contains("token 3 of 3"));
    assert_eq!(plugin.score(&[row("a")]).unwrap(), [Some(0.5)]); // without ids
}

#[test]
fn table_and_note_declare_them() {
    let pack = &pack().0;
    let flags = unsafe { (**pack.plugins).flags };
    assert_eq!(flags, mortise::sys::MORTISE_FLAG_CONCURRENT | mortise::sys::MORTISE_FLAG_TOKEN_REWARDS);
    let binary = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let text = format!("\"flags\":{flags},");
    assert!(binary.windows(text.len()).any(|bytes| bytes == text.as_bytes()), "the note does not say {text}");
}
