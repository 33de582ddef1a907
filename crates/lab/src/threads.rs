//! Work that is divided among threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` for every number below `count`, on several threads. Each thread takes the next
/// number when it is done with one, and has a state of its own. All states are returned.
///
/// # Errors
/// If `work` fails. The other threads then end after the number they are at.
pub(crate) fn divide<S: Send, E: Send>(
    count: usize,
    threads: usize,
    new: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<(), E> + Sync,
) -> Result<Vec<S>, E> {
    let next = AtomicUsize::new(0);
    let thread = || -> Result<S, E> {
        let mut state = new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(state);
            }
            if let Err(error) = work(&mut state, number) {
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = threads.clamp(1, count.max(1));
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(thread)).collect();
        let own = thread();
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // Every thread is waited for, also after an error.
        let all: Vec<_> = std::iter::once(own).chain(others).collect();
        all.into_iter().collect()
    })
}

/// The results of `work` for every number below `count`, in order, computed on several threads.
pub(crate) fn map<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let computed = divide(count, threads, Vec::new, |results, number| {
        results.push((number, work(number)));
        Ok::<(), std::convert::Infallible>(())
    });
    let Ok(computed) = computed;
    let mut results: Vec<(usize, T)> = computed.into_iter().flatten().collect();
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_worked_on_once() {
        for threads in [1, 2, 7, 50] {
            assert_eq!(
                map(20, threads, |number| number * 2),
                Vec::from_iter((0..20).map(|n| n * 2))
            );
            assert!(map(0, threads, |number| number).is_empty());
        }
    }

    #[test]
    fn an_error_is_returned() {
        let work = |_: &mut (), number| if number == 3 { Err("three") } else { Ok(()) };
        assert_eq!(divide(10, 2, || (), work), Err("three"));
    }
}
