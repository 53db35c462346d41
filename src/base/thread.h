/* base/thread.h -- start a thread that takes no signals, and the hint of a loop that waits for another thread.
 *
 *     int error = thread_start(&thread, serve, arg);   // 0, or the error number of pthread_create
 *     for (int i = 0; i < SPINS && !there(); i++)
 *         thread_pause();
 *
 * Signals are for the program's own thread: a handler that ran in another one would not end its sleeps.
 */
#ifndef SPTUNE_BASE_THREAD_H
#define SPTUNE_BASE_THREAD_H

#include <pthread.h>

int thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

/* Tells the core that this is a spin: its sibling thread gets the execution units. */
static inline void thread_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

#endif
