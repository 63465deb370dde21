//! Everything that a row tells its reward, through the test host.
use mortise::testing::{Batch, Plugin, Row};
use mortise::FinishReason;

struct Echo;

impl mortise::Reward for Echo {
    fn new(_: &mortise::Params) -> mortise::Result<Self> {
        Ok(Echo)
    }
    fn score(&self, row: &mortise::Row) -> mortise::Result<Option<f64>> {
        let text = row.completion();
        let value = match &*text {
            "level" => row.integer("level").map(|level| level as f64),
            "level as number" => row.number("level"),
            "share" => row.number("share"),
            "share as integer" => row.integer("share").map(|share| share as f64),
            "tags" => row.json("tags").map(|tags| tags.len() as f64),
            "messages" => Some(row.messages().len() as f64),
            "prompt ids" => Some(row.prompt_ids().iter().sum::<i64>() as f64),
            "finish" => Some((row.finish_reason() == Some(FinishReason::Length)) as i32 as f64),
            "sample" => Some((row.group_index() * 100 + row.sample_index() * 10 + row.row_id()) as f64),
            "step" => Some(row.step() as f64 + if row.is_validation() { 0.5 } else { 0.0 }),
            "most" => Some(row.max_response_length() as f64),
            "names" => Some(row.column_names().len() as f64),
            _ => None,
        };
        Ok(value)
    }
}

mortise::pack! {
    id: "test.rows",
    reward "echo": Echo, "what a row says",
    params: []
}

#[test]
fn rows_say_all() {
    let mut plugin = Plugin::open(pack(), &[]).unwrap();
    let columns = [("#level", "3"), ("#share", "0.5"), ("$tags", "[1, 2]"), ("answer", "7")];
    let row = |completion| Row { prompt: "p", completion, columns: &columns };
    let ask = ["level", "level as number", "share", "share as integer", "tags", "messages", "prompt ids", "finish", "sample"];
    let rows: Vec<Row> = ask.iter().chain(&["step", "most", "names"]).map(|name| row(name)).collect();
    let batch = Batch {
        messages: &["", "", "", "", "", "[{}]"],
        finish_reason: &[FinishReason::Length; 12],
        group_index: &[2; 12],
        sample_index: &[1; 12],
        num_prompt_ids: 4,
        step: 7,
        max_response_length: 64,
        is_validation: true,
        ..Batch::default()
    };
    let (rewards, _) = plugin.score_batch(&rows, &batch).unwrap();
    let expected = [3.0, 3.0, 0.5, f64::NAN, 6.0, 4.0, 6.0, 1.0, 218.0, 7.5, 64.0, 4.0];
    for (reward, expected) in rewards.iter().zip(expected) {
        assert_eq!(*reward, if expected.is_nan() { None } else { Some(expected) });
    }
}

#[test]
fn a_number_that_is_none_is_told() {
    let mut plugin = Plugin::open(pack(), &[]).unwrap();
    let error = plugin.score(&[Row { prompt: "", completion: "", columns: &[("#level", "much")] }]).unwrap_err();
    assert!(error.text.contains("column '#level': 'much' is not a number"));
}
