// Before the first paint, so that a chosen theme does not flash the other one.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem('throng.theme');
  } catch {
    // Without storage it is the system's.
  }
  document.documentElement.dataset.theme = chosen === 'dark' || chosen === 'light'
    ? chosen : matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
}
