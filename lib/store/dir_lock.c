/*
 * Waiting for other threads and other processes.  Whoever has a lock may be stopped (SIGSTOP), may wait for a disk, or
 * may look through everything: nobody waits longer than until a deadline of its own.
 */
#include <errno.h>
#include <time.h>

#include "base/time.h"
#include "store/dir_impl.h"

enum { PAUSE_MIN_MS = 1, PAUSE_MAX_MS = 50 };

int64_t dir_until(const struct store_session *ss)
{
	return ss->deadline ? ss->deadline : time_mono_ns() + DIR_WAIT_S * (int64_t)1000000000;
}

static struct timespec span(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}

/* Somebody has the lock.  False: not until then, or errno is another. */
static bool wait_lock(int fd, enum file_lock how, int64_t until)
{
	int64_t pause = PAUSE_MIN_MS * (int64_t)1000000, left;

	while (!file_lock(fd, how, false)) {
		struct timespec t;

		if (errno != EWOULDBLOCK && errno != EACCES)
			return false;
		left = until - time_mono_ns();
		if (left <= 0) {
			errno = EWOULDBLOCK;
			return false;
		}
		t = span(pause < left ? pause : left);
		nanosleep(&t, NULL);
		pause = pause * 2 < PAUSE_MAX_MS * (int64_t)1000000 ? pause * 2 : PAUSE_MAX_MS * (int64_t)1000000;
	}
	return true;
}

static bool lock_until(int fd, enum file_lock how, int64_t until)
{
	bool locked = file_lock(fd, how, false);
	int why;

	if (locked || (errno != EWOULDBLOCK && errno != EACCES))
		return locked;
	store_wait(true);
	locked = wait_lock(fd, how, until);
	why = errno;
	store_wait(false);
	errno = why;
	return locked;
}

int file_lock_until(int fd, enum file_lock how, int64_t until, const char *what, struct ds_err *err)
{
	if (lock_until(fd, how, until))
		return 0;
	return errno == EWOULDBLOCK ? err_set(err, DS_TEMP, "'%s': another process holds the lock", what) :
		err_errno(err, DS_IO, "cannot lock '%s'", what);
}

/* gcc's thread sanitizer does not know pthread_mutex_clocklock. */
static int mutex_until(pthread_mutex_t *m, int64_t until)
{
#ifdef __SANITIZE_THREAD__
	struct timespec t = span(time_wall_ns() + until - time_mono_ns());

	return pthread_mutex_timedlock(m, &t);
#else
	struct timespec t = span(until > 0 ? until : 0);

	return pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &t);
#endif
}

int dir_write_lock(struct dir *d, int64_t until, struct ds_err *err)
{
	int late = pthread_mutex_trylock(&d->write);

	if (late) {
		store_wait(true);
		late = mutex_until(&d->write, until);
		store_wait(false);
	}
	if (late)
		return err_set(err, DS_TEMP, "'%s': others are writing", d->path);
	d->until = until;
	return 0;
}

void dir_write_unlock(struct dir *d)
{
	pthread_mutex_unlock(&d->write);
}

int dir_lock(struct dir *d, struct ds_err *err)
{
	return d->lock_fd < 0 ? 0 : file_lock_until(d->lock_fd, LOCK_ALONE, d->until, d->path, err);
}

bool dir_trylock(struct dir *d)
{
	return d->lock_fd < 0 || file_lock(d->lock_fd, LOCK_ALONE, false);
}

void dir_unlock(struct dir *d)
{
	if (d->lock_fd >= 0)
		file_lock(d->lock_fd, LOCK_NONE, true);
}
