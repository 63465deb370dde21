// Requests of a page to the server that it came from, with the token of the page's own address.
'use strict';
window.mortise_server = (() => {
  const token = new URLSearchParams(location.search).get('token') ?? '';
  const with_token = (path) => `${path}${path.includes('?') ? '&' : '?'}token=${encodeURIComponent(token)}`;
  // With a body it is a POST. An error has the server's own words.
  async function ask(path, body, signal) {
    const options = { headers: { Authorization: `Bearer ${token}` }, signal };
    const answer = await fetch(path, body === undefined ? options : { ...options, method: 'POST', body: JSON.stringify(body) });
    if (answer.ok) return answer;
    const said = await answer.text();
    let message = said || answer.statusText;
    try { message = JSON.parse(said).error.message; } catch { /* not JSON: as it came */ }
    throw new Error(message);
  }
  return { with_token, ask };
})();
