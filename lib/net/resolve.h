/*
 * Addresses of names, within a time: getaddrinfo has no deadline.
 */
#ifndef DS_NET_RESOLVE_H
#define DS_NET_RESOLVE_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/* As getaddrinfo, for streams.  until: CLOCK_MONOTONIC, 0: however long it takes; EAI_AGAIN: it takes longer. */
int resolve_until(const char *host, const char *port, bool passive, int64_t until, struct addrinfo **list);

#endif
