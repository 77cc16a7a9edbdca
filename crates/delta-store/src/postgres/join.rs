//! Several statements in one round trip.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Runs all of them at once and returns all answers. They are first polled in the order given,
/// which is the order in which the driver sends them and the server carries them out.
pub(super) async fn in_order<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut answers: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        let mut waiting = false;
        for (future, answer) in futures.iter_mut().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *answer = Some(value),
                Poll::Pending => waiting = true,
            }
        }
        if waiting {
            return Poll::Pending;
        }
        Poll::Ready(answers.iter_mut().filter_map(Option::take).collect())
    })
    .await
}
