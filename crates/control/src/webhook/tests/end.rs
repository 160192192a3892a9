//! The end of a dispatcher with requests in it.

use super::*;

/// Returns a dispatcher with two requests under way, and more behind them.
async fn busy() -> (Arc<App>, Bench) {
    let app = app(0, echo).await;
    let bench = bench(2, Settings { batch_events_max: 1, ..settings(&app.url) });
    (0..20).for_each(|n| bench.hook_request(n, n).unwrap());
    app.sizes(2).await;
    // These are still in the request queue.
    (20..30).for_each(|n| bench.hook_request(n, n).unwrap());
    (app, bench)
}

async fn all_get_the_end(mut bench: Bench) {
    let reason = r#"{"reason":"the server is shutting down"}"#;
    let mut numbers = Vec::new();
    for _ in 0..30 {
        let (n, ok, response) = bench.response().await;
        assert_eq!((ok, response.as_str()), (false, reason));
        numbers.push(n);
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..30), "each once");
    let stats = bench.dispatcher.stats();
    assert_eq!((stats.failures[ErrorKind::Stopped as usize], stats.waiting), (30, 0));
    assert_eq!(bench.hook_request(1, 1), Err(QueueFull));
}

#[tokio::test]
async fn at_the_end_all_that_wait_get_a_response() {
    let (_app, mut bench) = busy().await;
    bench.dispatcher.stop();
    let ended = tokio::time::timeout(TIMEOUT, &mut bench.worker).await;
    ended.expect("the worker ends").unwrap();
    all_get_the_end(bench).await;

    let (_app, bench) = busy().await;
    bench.worker.abort();
    all_get_the_end(bench).await;
}

#[test]
fn a_runtime_that_ends_leaves_no_request_waiting() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (_app, bench) = first.block_on(busy());
    drop(first);
    runtime().block_on(all_get_the_end(bench));
    // A worker that never ran leaves no request waiting, either.
    let fixed = fixed(9, 1);
    let (dispatcher, Workers { worker, .. }) =
        Dispatcher::new(fixed, settings(""), EventStart::default());
    dispatcher.send(vec![hook_request(1)]).unwrap();
    drop(worker);
    assert_eq!(dispatcher.stats().failures[ErrorKind::Stopped as usize], 1);
    assert_eq!(dispatcher.send(vec![hook_request(1)]), Err(QueueFull));
}
