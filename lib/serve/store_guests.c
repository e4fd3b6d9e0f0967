/* Those who are connected: a thread for each. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "serve/internal.h"
#include "serve/store_service_impl.h"
#include "store/resp_front.h"

enum { STACK = 512 << 10, HTTP_GUESTS = 64 };

/* ---- one guest ---- */

static int page(void *ctx, const char *path, struct buf *b)
{
	struct store_service *sv = ctx;

	if (strcmp(path, "/metrics") == 0) {
		figures_metrics(sv, b);
		return 200;
	}
	if (strcmp(path, "/healthz") != 0 && strcmp(path, "/readyz") != 0)
		return 404;
	if (path[1] == 'r' && sv->draining) {
		buf_str(b, "draining\n");
		return 503;
	}
	buf_str(b, "ok\n");
	return 200;
}

static void set_timeouts(int fd, int64_t ns)
{
	const struct timeval limit = { .tv_sec = ns / 1000000000, .tv_usec = ns % 1000000000 / 1000 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* A client that goes away is its own business; one that speaks nonsense or stands still is worth a line. */
static void tell_end(const struct guest *g, int rc, const struct ds_err *err)
{
	bool gone = rc == DS_SIGPIPE || rc == DS_IO || rc == DS_UNAVAILABLE ||
		(rc == DS_DATA && strstr(err->text, "truncated"));

	if (rc && !gone)
		log_err(err);
	else if (rc)
		log_msg(LOG_INFO, "%s", err->text);
	else
		log_msg(LOG_DEBUG, "'%s' has ended", g->peer);
}

static void *serve_guest(void *arg)
{
	struct guest *g = arg;
	struct store_service *sv = g->sv;
	const uint64_t one = 1;
	struct ds_err err;
	ssize_t n;
	int rc = 0;

	if (g->kind == DOOR_STORE) {
		rc = store_serve(sv->server, g->fd, g->fd, g->peer, NULL, &err);
	} else if (g->kind == DOOR_RESP) {
		rc = resp_serve(sv->front, g->fd, g->peer, &err);
	} else {
		set_timeouts(g->fd, 5000000000);
		http_answer(g->fd, page, sv);
	}
	tell_end(g, rc, &err);
	pthread_mutex_lock(&sv->lock);
	if (g->prev)
		g->prev->next = g->next;
	else
		sv->here = g->next;
	if (g->next)
		g->next->prev = g->prev;
	sv->count--;
	sv->pages -= g->kind == DOOR_HTTP;
	close(g->fd);
	g->next = sv->ended;
	sv->ended = g;
	pthread_mutex_unlock(&sv->lock);
	n = write(sv->wake, &one, sizeof one);
	(void)n;
	return NULL;
}

/* ---- at the door ---- */

/* Signals are the main thread's. */
static int start(struct guest *g)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int rc = pthread_attr_init(&attr);

	if (rc)
		return rc;
	pthread_attr_setstacksize(&attr, STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&g->thread, &attr, serve_guest, g);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return rc;
}

static void turn_away(struct store_service *sv, enum door_kind kind, int fd, const char *why)
{
	static const char resp[] = "-ERR max number of clients reached\r\n";
	struct error_message m = { .code = DS_TEMP, .retryable = true };
	struct hello h = { .minor = 1, .role = "store" };
	struct meta_builder *b = meta_new();
	struct frame_writer *w = NULL;
	struct ds_err err;
	ssize_t n;

	atomic_fetch_add(&sv->turned_away, 1);
	fd_nonblock(fd, true);
	if (kind == DOOR_RESP) {
		n = send(fd, resp, sizeof resp - 1, MSG_NOSIGNAL);
		(void)n;
	} else if (kind == DOOR_STORE && b && !frame_writer_new(&w, fd, "client", &err)) {
		snprintf(h.program, sizeof h.program, "%.31s", sv->o->program);
		snprintf(m.text, sizeof m.text, "%s", why);
		hello_put(b, &h);
		frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, &err);
		meta_reset(b);
		error_put(b, &m);
		frame_write(w, FRAME_ERROR, 0, 0, b, NULL, 0, false, &err);
		frame_write_end(w, &err);
		frame_writer_free(w);
	}
	meta_free(b);
	shutdown(fd, SHUT_WR);
	close(fd);
}

static struct guest *new_guest(struct store_service *sv, struct door *d, int fd)
{
	struct guest *g = mem_calloc(1, sizeof *g);

	if (!g)
		return NULL;
	g->sv = sv;
	g->kind = d->kind;
	g->fd = fd;
	g->since = time_mono_ns();
	snprintf(g->peer, sizeof g->peer, "%.250s client %llu", d->addr.text, (unsigned long long)d->accepted);
	return g;
}

static bool full(struct store_service *sv, enum door_kind kind)
{
	bool yes;

	pthread_mutex_lock(&sv->lock);
	yes = kind == DOOR_HTTP ? sv->pages >= HTTP_GUESTS : sv->count - sv->pages >= (size_t)sv->o->max_clients;
	pthread_mutex_unlock(&sv->lock);
	return yes;
}

static void take_in(struct store_service *sv, struct door *d, int fd)
{
	struct guest *g;
	int on = 1, rc;

	d->accepted++;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* of TCP sockets alone */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* a machine that vanished holds no place for ever */
	if (full(sv, d->kind)) {
		log_msg(LOG_INFO, "'%s': a client is turned away (--max-clients)", d->addr.text);
		turn_away(sv, d->kind, fd, "too many clients are connected");
		return;
	}
	g = new_guest(sv, d, fd);
	if (!g) {
		turn_away(sv, d->kind, fd, "no memory for another client");
		return;
	}
	log_msg(LOG_DEBUG, "'%s' has connected", g->peer);
	pthread_mutex_lock(&sv->lock);
	rc = start(g);
	if (!rc) {
		g->next = sv->here;
		if (sv->here)
			sv->here->prev = g;
		sv->here = g;
		sv->count++;
		sv->pages += g->kind == DOOR_HTTP;
	}
	pthread_mutex_unlock(&sv->lock);
	if (rc) {
		log_msg(LOG_WARN, "'%s': cannot start a thread: %s", g->peer, strerror(rc));
		turn_away(sv, d->kind, fd, "no thread for another client");
		free(g);
	}
}

void guests_accept(struct store_service *sv, struct door *d, int64_t now)
{
	for (int k = 0; k < 64; k++) {
		int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0) {
			d->after = 0;
			take_in(sv, d, fd);
			continue;
		}
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		if ((errno == EMFILE || errno == ENFILE) && store_spare(sv->store))
			continue;
		if (errno != EAGAIN && errno != EWOULDBLOCK) {
			if (!d->after)
				log_msg(LOG_WARN, "cannot accept at '%s': %s", d->addr.text, strerror(errno));
			d->after = now + ACCEPT_PAUSE_NS;
		}
		return;
	}
}

/* ---- all of them ---- */

size_t guests_count(struct store_service *sv)
{
	size_t n;

	pthread_mutex_lock(&sv->lock);
	n = sv->count;
	pthread_mutex_unlock(&sv->lock);
	return n;
}

void guests_bury(struct store_service *sv)
{
	struct guest *g, *next;

	pthread_mutex_lock(&sv->lock);
	g = sv->ended;
	sv->ended = NULL;
	pthread_mutex_unlock(&sv->lock);
	for (; g; g = next) {
		next = g->next;
		pthread_join(g->thread, NULL);
		free(g);
	}
}

static void shut(struct store_service *sv, enum door_kind most, int how)
{
	pthread_mutex_lock(&sv->lock);
	for (struct guest *g = sv->here; g; g = g->next)
		if (g->kind == most || how == SHUT_RDWR)
			shutdown(g->fd, how);
	pthread_mutex_unlock(&sv->lock);
}

void guests_drain(struct store_service *sv)
{
	store_server_drain(sv->server);
	if (sv->front)
		resp_front_drain(sv->front);
	shut(sv, DOOR_RESP, SHUT_RD);
}

void guests_cut(struct store_service *sv)
{
	shut(sv, DOOR_STORE, SHUT_RDWR);
}
